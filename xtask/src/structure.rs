//! The picture `docs/src/structure.svg`: the crates and what they take from each other, from their
//! real imports.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use proc_macro2::{Spacing, TokenStream, TokenTree};

use crate::tidy::source::Source;

/// Where the picture is.
pub(crate) const PICTURE: &str = "docs/src/structure.svg";

/// The letters in a line of a crate's description, and its lines.
const COLUMNS: usize = 28;
const LINES: usize = 3;

/// A crate: its name, its purpose, and the crates that it imports.
#[derive(Debug)]
struct Room {
    /// Folder of the crate, from the repository's root.
    home: String,
    name: String,
    what: String,
    takes: BTreeSet<String>,
}

/// The picture, as it should be.
pub(crate) fn draw(files: &BTreeMap<String, String>, sources: &[Source]) -> String {
    let rooms = rooms(files, sources);
    let floors = floors(&rooms);
    svg(&rooms, &floors)
}

/// The folders of a crate and of all crates below it.
pub(crate) fn below(
    files: &BTreeMap<String, String>,
    sources: &[Source],
    name: &str,
) -> BTreeSet<String> {
    let rooms = rooms(files, sources);
    let mut next = vec![name];
    let mut homes = BTreeSet::new();
    while let Some(room) = next.pop().and_then(|name| rooms.iter().find(|room| room.name == name)) {
        if homes.insert(room.home.clone()) {
            next.extend(room.takes.iter().map(String::as_str));
        }
    }
    homes
}

/// Each import of a crate of the lab by one of the product: the importing crate's folder, and the
/// imported crate.
pub(crate) fn strays(
    files: &BTreeMap<String, String>,
    sources: &[Source],
) -> Vec<(String, String)> {
    let rooms = rooms(files, sources);
    let is_lab =
        |name: &str| rooms.iter().any(|room| room.name == name && room.home.starts_with("lab/"));
    let product = rooms.iter().filter(|room| room.home.starts_with("vlane/"));
    let imports =
        product.flat_map(|room| room.takes.iter().map(|name| (room.home.clone(), name.clone())));
    imports.filter(|(_, name)| is_lab(name)).collect()
}

/// Folders of the crates with a description that is longer than its place in the picture.
pub(crate) fn cut(files: &BTreeMap<String, String>, sources: &[Source]) -> Vec<String> {
    let is_cut = |room: &Room| wrapped(&room.what, COLUMNS).len() > LINES;
    rooms(files, sources).into_iter().filter(is_cut).map(|room| room.home).collect()
}

/// Checks are not drawn: they work on the product and the lab, or test them from outside.
fn is_check(home: &str) -> bool {
    ["checks", "fuzz", "xtask"].contains(&home.split('/').next().unwrap_or_default())
}

fn rooms(files: &BTreeMap<String, String>, sources: &[Source]) -> Vec<Room> {
    let mut rooms = Vec::new();
    for (name, manifest) in files {
        let home = name.strip_suffix("/Cargo.toml").filter(|home| !is_check(home));
        let Some(home) = home else { continue };
        let value = |key: &str| {
            let line =
                manifest.lines().find_map(|line| line.strip_prefix(key)?.trim().strip_prefix('='));
            line.unwrap_or_default().trim().trim_matches('"').to_owned()
        };
        let own: Vec<&Source> = sources.iter().filter(|source| source.home == home).collect();
        let mut takes = BTreeSet::new();
        for source in own.iter().filter(|source| source.module.is_some()) {
            imports(source.tokens.clone(), &mut takes);
        }
        rooms.push(Room {
            home: home.to_owned(),
            name: value("name"),
            what: value("description"),
            takes,
        });
    }
    let names: BTreeSet<String> = rooms.iter().map(|room| room.name.clone()).collect();
    for room in &mut rooms {
        room.takes.retain(|name| names.contains(name) && *name != room.name);
    }
    rooms
}

/// All names that begin with `vlane_`, crates' and others', and `vlane` at the head of a path.
fn imports(tokens: TokenStream, found: &mut BTreeSet<String>) {
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Group(group) => imports(group.stream(), found),
            TokenTree::Ident(ident) => {
                let name = ident.to_string();
                if name.starts_with("vlane_")
                    || name == "vlane" && tokens.peek().is_some_and(is_path_colon)
                {
                    found.insert(name.replace('_', "-"));
                }
            }
            _ => {}
        }
    }
}

/// The first colon of `::`.
fn is_path_colon(token: &TokenTree) -> bool {
    matches!(token, TokenTree::Punct(punct)
        if punct.as_char() == ':' && punct.spacing() == Spacing::Joint)
}

/// The floor of each crate: one above the highest that it takes something from.
fn floors(rooms: &[Room]) -> BTreeMap<&str, usize> {
    let mut floors: BTreeMap<&str, usize> = BTreeMap::new();
    // Crates cannot take from each other in a circle, so this ends.
    while floors.len() < rooms.len() {
        for room in
            rooms.iter().filter(|room| !floors.contains_key(room.name.as_str())).collect::<Vec<_>>()
        {
            let below: Option<Vec<usize>> =
                room.takes.iter().map(|name| floors.get(name.as_str()).copied()).collect();
            if let Some(below) = below {
                floors.insert(&room.name, below.into_iter().max().map_or(0, |floor| floor + 1));
            }
        }
    }
    floors
}

const WIDTH: usize = 190;
const HEIGHT: usize = 74;
const GAP: usize = 24;
const BETWEEN: usize = 66;
const HEAD: usize = 64;

/// The picture's frame, title and legend.
fn head(width: usize, height: usize) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"system-ui, sans-serif\">\n<rect width=\"{width}\" height=\"{height}\" \
         fill=\"#fff\"/>\n<text x=\"{GAP}\" y=\"28\" font-size=\"18\" font-weight=\"700\">The \
         crates, and what they take from each other</text>\n<text x=\"{GAP}\" y=\"48\" \
         font-size=\"12\" fill=\"#555\">Blue: the product (vlane/). Amber: the lab (lab/). An \
         arrow: imports. Left out is what another arrow's crate imports too. Made by cargo xtask \
         structure.</text>\n"
    )
}

fn svg(rooms: &[Room], floors: &BTreeMap<&str, usize>) -> String {
    let top = floors.values().copied().max().unwrap_or(0);
    let on = |floor: usize| rooms.iter().filter(move |room| floors[room.name.as_str()] == floor);
    let widest = (0..=top).map(|floor| on(floor).count()).max().unwrap_or(1);
    let width = widest * (WIDTH + GAP) + GAP;
    let height = HEAD + (top + 1) * (HEIGHT + BETWEEN);
    let mut places: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for floor in 0..=top {
        let count = on(floor).count();
        let left = (width + GAP - count * (WIDTH + GAP)) / 2;
        for (at, room) in on(floor).enumerate() {
            places.insert(
                &room.name,
                (left + at * (WIDTH + GAP), HEAD + (top - floor) * (HEIGHT + BETWEEN)),
            );
        }
    }
    let mut out = head(width, height);
    for room in rooms {
        let (x, y) = places[room.name.as_str()];
        for name in room.takes.iter().filter(|name| !is_implied(rooms, room, name)) {
            let (to_x, to_y) = places[name.as_str()];
            let (from, to) = ((x + WIDTH / 2, y + HEIGHT), (to_x + WIDTH / 2, to_y));
            let bend = (to.1 - from.1) / 2;
            let _ = writeln!(
                out,
                "<path d=\"M{} {}C{} {} {} {} {} {}\" fill=\"none\" stroke=\"#7a8594\" \
                 stroke-width=\"1.4\"/><circle cx=\"{}\" cy=\"{}\" r=\"3\" fill=\"#7a8594\"/>",
                from.0,
                from.1,
                from.0,
                from.1 + bend,
                to.0,
                to.1 - bend,
                to.0,
                to.1,
                to.0,
                to.1
            );
        }
    }
    for room in rooms {
        let (x, y) = places[room.name.as_str()];
        let name = match room.name.as_str() {
            "vlane-lab" => "vlane-lab",
            name => name.strip_prefix("vlane-").unwrap_or(name),
        };
        let (fill, stroke) = match room.home.starts_with("lab/") {
            true => ("#fbf3e4", "#a5792b"),
            false => ("#eef4fb", "#3b6ea5"),
        };
        let _ = writeln!(
            out,
            "<rect x=\"{x}\" y=\"{y}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" rx=\"8\" \
             fill=\"{fill}\" stroke=\"{stroke}\"/><text x=\"{}\" y=\"{}\" font-size=\"15\" \
             font-weight=\"700\">{name}</text>",
            x + 10,
            y + 21
        );
        for (line, text) in (0..).zip(wrapped(&room.what, COLUMNS).iter().take(LINES)) {
            let (x, y) = (x + 10, y + 38 + line * 13);
            let _ = writeln!(
                out,
                "<text x=\"{x}\" y=\"{y}\" font-size=\"11\" fill=\"#333\">{}</text>",
                escaped(text)
            );
        }
    }
    out + "</svg>\n"
}

/// True if another crate that `room` takes from leads to `name`.
fn is_implied(rooms: &[Room], room: &Room, name: &str) -> bool {
    let of = |name: &str| rooms.iter().find(|room| room.name == name);
    let mut next: Vec<&str> =
        room.takes.iter().map(String::as_str).filter(|other| *other != name).collect();
    let mut seen = BTreeSet::new();
    while let Some(at) = next.pop() {
        if at == name {
            return true;
        }
        if seen.insert(at) {
            next.extend(of(at).into_iter().flat_map(|room| room.takes.iter().map(String::as_str)));
        }
    }
    false
}

fn wrapped(text: &str, columns: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.len() - 1;
        if lines[last].is_empty() {
            lines[last] = word.to_owned();
        } else if lines[last].chars().count() + 1 + word.chars().count() <= columns {
            lines[last] = format!("{} {word}", lines[last]);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn room(name: &str, takes: &[&str]) -> Room {
        let takes = takes.iter().map(|name| (*name).to_owned()).collect();
        Room { home: String::new(), name: name.to_owned(), what: String::new(), takes }
    }

    #[test]
    fn imports_are_paths_of_crates() {
        let mut found = BTreeSet::new();
        let code = "use vlane::serve; fn f(vlane: u8) { vlane_lane::g(self.vlane) }";
        imports(code.parse().unwrap(), &mut found);
        assert_eq!(found.into_iter().collect::<Vec<_>>(), ["vlane", "vlane-lane"]);
    }

    /// An arrow that others imply is left out.
    #[test]
    fn crates_stand_above_their_dependencies() {
        let rooms = [room("a", &["b", "c"]), room("b", &["c"]), room("c", &[]), room("d", &[])];
        let floors = floors(&rooms);
        assert_eq!((floors["a"], floors["b"], floors["c"], floors["d"]), (2, 1, 0, 0));
        assert!(is_implied(&rooms, &rooms[0], "c") && !is_implied(&rooms, &rooms[0], "b"));
    }
}
