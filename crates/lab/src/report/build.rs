//! Building blocks of reports: sections, tables, bars, and figures over rounds.

use super::{Axis, Block, Cell, Chart, ChartKind, Column, Point, Section, Series, Spread, Table};

/// A section without a command of its own.
pub fn section(id: &str, title: &str, text: Vec<String>, blocks: Vec<Block>) -> Section {
    Section { id: id.into(), title: title.into(), text, command: None, blocks }
}

/// A table; of each column title and unit.
pub fn table(caption: &str, columns: &[(&str, &str)], rows: Vec<Vec<Cell>>) -> Block {
    let columns = columns.iter().map(|(title, unit)| Column::new(title, unit)).collect();
    Block::Table(Table { caption: caption.into(), columns, rows })
}

/// One figure of every round; nothing if a round does not have it.
pub fn spread<T>(rounds: &[T], of: impl Fn(&T) -> Option<f64>) -> Option<Spread> {
    let values: Option<Vec<f64>> = rounds.iter().map(of).collect();
    Spread::of(&values?)
}

/// Groups of bars: one group for each category, one bar in it for each named row, whose figures stand in the categories' order.
pub fn bars(
    caption: &str,
    y: (&str, &str),
    categories: Vec<String>,
    of: Vec<(String, Vec<Option<Spread>>)>,
) -> Block {
    let points = |figures: Vec<Option<Spread>>| -> Vec<Point> {
        let placed = (0_u32..).zip(figures);
        placed.filter_map(|(x, y)| Some(Point { x: x.into(), y: y? })).collect()
    };
    Block::Chart(Chart {
        caption: caption.into(),
        kind: ChartKind::Bars,
        x: Axis { title: String::new(), unit: String::new(), log: false },
        y: Axis { title: y.0.into(), unit: y.1.into(), log: false },
        categories,
        series: of.into_iter().map(|(name, figures)| Series::measured(name, points(figures))).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_without_a_figure_leaves_none_for_all() {
        assert_eq!(spread(&[Some(1.0), None], |v| *v), None);
        assert_eq!(
            spread(&[3.0, 1.0, 2.0], |v| Some(*v)).map(|s| (s.min, s.median, s.max)),
            Some((1.0, 2.0, 3.0))
        );
    }

    #[test]
    fn a_bar_that_is_missing_leaves_its_place_free() {
        let one = Spread::of(&[1.0]);
        let Block::Chart(chart) =
            bars("c", ("y", ""), vec!["a".into(), "b".into()], vec![("s".into(), vec![None, one])])
        else {
            panic!("a chart")
        };
        let places: Vec<f64> = chart.series[0].points.iter().map(|point| point.x).collect();
        assert_eq!(places, [1.0]);
    }
}
