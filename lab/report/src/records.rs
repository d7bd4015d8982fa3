//! Samples of records that can be serialized: a column for each of their figures.

use serde::Serialize;
use serde_json::Value;

use crate::build::Columns;
use crate::{Cell, Column, Samples};

/// Endings of a field's name that are its unit.
const UNITS: [&str; 4] = ["us", "ms", "ns", "seconds"];

impl Samples {
    /// A row for each record: first the words that tell what it is of, which `labels` are the
    /// titles of, then its fields.
    ///
    /// A column is called like its field. A record in a record gives its own fields, lists are
    /// numbers with spaces between. Fields that a record lacks are empty.
    pub fn of_records<R: Serialize>(
        id: impl Into<String>,
        caption: impl Into<String>,
        labels: impl Columns,
        records: impl IntoIterator<Item = (Vec<Cell>, R)>,
    ) -> Self {
        let mut columns = labels.columns();
        let first = columns.len();
        let mut names: Vec<String> = Vec::new();
        let mut rows = Vec::new();
        for (mut row, record) in records {
            row.resize(first, Cell::Empty);
            let mut fields = Vec::new();
            // A figure that is not a number is none, and no record fails otherwise.
            flatten("", serde_json::to_value(record).unwrap_or_default(), &mut fields);
            for (name, cell) in fields {
                let place = names.iter().position(|known| *known == name).unwrap_or_else(|| {
                    names.push(name);
                    names.len() - 1
                });
                row.resize(row.len().max(first + place + 1), Cell::Empty);
                row[first + place] = cell;
            }
            rows.push(row);
        }
        columns.extend(names.iter().map(|name| column(name)));
        rows.iter_mut().for_each(|row| row.resize(columns.len(), Cell::Empty));
        Self::new(id, caption, columns, rows)
    }
}

fn flatten(name: &str, value: Value, into: &mut Vec<(String, Cell)>) {
    let cell = match value {
        Value::Object(fields) => {
            for (field, value) in fields {
                let name = if name.is_empty() { field } else { format!("{name}: {field}") };
                flatten(&name, value, into);
            }
            return;
        }
        Value::Null => Cell::Empty,
        Value::Number(number) => number.as_f64().into(),
        Value::String(text) => Cell::Text(text),
        Value::Bool(is) => Cell::Number(f64::from(u8::from(is))),
        Value::Array(list) => {
            Cell::Text(list.iter().map(Value::to_string).collect::<Vec<_>>().join(" "))
        }
    };
    into.push((name.to_owned(), cell));
}

/// `p99_us` is `p99` in us.
fn column(name: &str) -> Column {
    let unit =
        UNITS.iter().find(|unit| name.strip_suffix(*unit).is_some_and(|rest| rest.ends_with('_')));
    let title = unit.map_or(name, |unit| name.trim_end_matches(unit));
    Column::new(title.replace('_', " ").trim(), unit.copied().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize)]
    struct Inner {
        crowd_ms: f64,
        seen: bool,
    }

    #[derive(Serialize)]
    struct Record {
        seconds: f64,
        p99_us: f64,
        pages: Option<u64>,
        beside: Option<Inner>,
        fsyncs_us: Vec<u64>,
    }

    #[test]
    fn every_record_field_has_a_place() {
        let bare =
            Record { seconds: 0.5, p99_us: f64::NAN, pages: None, beside: None, fsyncs_us: vec![] };
        let full = Record {
            seconds: 1.0,
            p99_us: 3.0,
            pages: Some(u64::from(u32::MAX)),
            beside: Some(Inner { crowd_ms: 0.25, seen: true }),
            fsyncs_us: vec![7, 1],
        };
        let of = |arm: &str| vec![Cell::from(arm.to_owned())];
        let samples =
            Samples::of_records("rounds", "Rounds", "arm", [(of("off"), bare), (of("on"), full)]);
        assert!(samples.rows.iter().all(|row| row.len() == samples.columns.len()));
        assert_eq!(
            samples.csv(),
            "arm,beside,fsyncs [us],p99 [us],pages,seconds,beside: crowd [ms],beside: seen\r\n\
             off,,,,,0.5,,\r\n\
             on,,7 1,3,4294967295,1,0.25,1\r\n"
        );
    }
}
