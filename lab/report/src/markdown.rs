//! A table as Markdown, for pages that are read on the web and in a repository.

use crate::table::{Grid, Shown};
use crate::text::head;
use crate::{Table, figure};

/// A table: a line per row, figures set to the right with their spread behind them.
pub fn table(table: &Table) -> String {
    let grid = Grid::of(table);
    let columns = 0..grid.columns.len();
    let heads: Vec<String> = columns.clone().map(|column| plain(&head(&grid, column))).collect();
    let rules: Vec<&str> =
        columns.map(|c| if grid.columns[c].numbers { "---:" } else { "---" }).collect();
    let mut out = line(&heads) + &format!("|{}|\n", rules.join("|"));
    for row in &grid.rows {
        out += &line(&row.iter().map(cell).collect::<Vec<_>>());
    }
    out
}

fn line(cells: &[String]) -> String {
    format!("| {} |\n", cells.join(" | "))
}

fn cell(shown: &Shown) -> String {
    let main = if shown.main == figure::NONE { String::new() } else { plain(&shown.main) };
    match shown.range.as_str() {
        "" => main,
        range => format!("{main} ({})", plain(range)),
    }
}

/// No character ends a cell or a line early, and blanks that align figures elsewhere are gone.
fn plain(text: &str) -> String {
    let blank = |c: char| c.is_control() || matches!(c, '\u{2007}' | '\u{2008}' | '\u{202f}');
    text.replace(blank, " ").trim().replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cell, Column, Spread};

    #[test]
    fn every_row_has_every_cell() {
        let spread = Spread { median: 2.0, min: 1.0, max: 3.0, runs: 3 };
        let columns =
            vec![Column::new("Row", ""), Column::new("CPU", "us"), Column::new("Verdict", "")];
        let rows = vec![
            vec![Cell::from("a|b"), Cell::Figure(spread), Cell::from("met")],
            vec![Cell::from("two\nlines"), Cell::Empty],
        ];
        let text = table(&Table { caption: String::new(), columns, rows });
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[..2], ["| Row | CPU (us) | Verdict |", "|---|---:|---|"]);
        assert_eq!(lines[2..], ["| a\\|b | 2 (1-3) | met |", "| two lines |  |  |"]);
    }
}
