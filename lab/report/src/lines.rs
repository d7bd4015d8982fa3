//! JSON for people and for `diff`: indented, but a list inside a list on one line: a table's row, a
//! measurement.

use std::io::{Result, Write};

use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

/// Writes it so.
pub(super) fn to_string<T: Serialize>(value: &T) -> serde_json::Result<String> {
    let mut out = Vec::new();
    value.serialize(&mut Serializer::with_formatter(&mut out, Lines::default()))?;
    // serde_json writes UTF-8.
    Ok(String::from_utf8_lossy(&out).into_owned())
}

#[derive(Default)]
struct Lines {
    pretty: PrettyFormatter<'static>,
    /// Open brackets: true for a list.
    open: Vec<bool>,
    /// How many of these are on one line.
    flat: usize,
}

impl Lines {
    /// Something begins; whether it is on one line with what it is in.
    fn begin(&mut self, is_list: bool) -> bool {
        let in_list = self.open.last() == Some(&true);
        if self.flat > 0 || is_list && in_list {
            self.flat += 1;
        }
        self.open.push(is_list);
        self.flat > 0
    }

    /// It ends; whether it was on one line.
    fn end(&mut self) -> bool {
        self.open.pop();
        let was = self.flat > 0;
        self.flat = self.flat.saturating_sub(1);
        was
    }

    fn between<W: ?Sized + Write>(writer: &mut W, first: bool) -> Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }
}

impl Formatter for Lines {
    fn begin_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> Result<()> {
        if self.begin(true) { writer.write_all(b"[") } else { self.pretty.begin_array(writer) }
    }

    fn end_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> Result<()> {
        if self.end() { writer.write_all(b"]") } else { self.pretty.end_array(writer) }
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> Result<()> {
        if self.flat > 0 {
            Self::between(writer, first)
        } else {
            self.pretty.begin_array_value(writer, first)
        }
    }

    fn end_array_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> Result<()> {
        if self.flat > 0 { Ok(()) } else { self.pretty.end_array_value(writer) }
    }

    fn begin_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> Result<()> {
        if self.begin(false) { writer.write_all(b"{") } else { self.pretty.begin_object(writer) }
    }

    fn end_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> Result<()> {
        if self.end() { writer.write_all(b"}") } else { self.pretty.end_object(writer) }
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> Result<()> {
        if self.flat > 0 {
            Self::between(writer, first)
        } else {
            self.pretty.begin_object_key(writer, first)
        }
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> Result<()> {
        writer.write_all(b": ")
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> Result<()> {
        if self.flat > 0 { Ok(()) } else { self.pretty.end_object_value(writer) }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_row_is_a_line() {
        let value = json!({"rows": [[1.5, "a", null], [{"median": 2, "runs": [3]}]], "title": "t", "none": []});
        let expected = "{\n  \"none\": [],\n  \"rows\": [\n    [1.5, \"a\", null],\n    \
                        [{\"median\": 2, \"runs\": [3]}]\n  ],\n  \"title\": \"t\"\n}";
        assert_eq!(to_string(&value).unwrap(), expected);
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
            "\\PC{0,6}".prop_map(Value::from)
        ];
        leaf.prop_recursive(5, 40, 5, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                prop::collection::btree_map("\\PC{0,4}", inner, 0..5)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn any_value_keeps_its_json(value in any_value()) {
            prop_assert_eq!(serde_json::from_str::<Value>(&to_string(&value).unwrap()).unwrap(), value);
        }
    }
}
