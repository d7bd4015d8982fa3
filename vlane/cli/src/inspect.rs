//! `vlane inspect`: an image's partitions, file systems and journals.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use serde_json::{Value, json};
use vlane_client::Output;
use vlane_engine::file::look_into;
use vlane_policy::journal::layout::{Content, Findings, Label, Place, Why, examine};
use vlane_policy::journal::{Disk, Journal};
use vlane_units::show_size;

use crate::output::Overwrite;
use crate::serve::FormatArg;

/// Pieces of a journal that are printed.
const SHOWN: usize = 8;

/// Show an image's partitions, file systems and journals
///
/// Only reads, takes no lock, and may run while the image is served. Shows the same layout that
/// `vlane serve` finds without a guest.
#[derive(Debug, Args)]
pub struct InspectArgs {
    /// Image: a raw file or a block device
    image: PathBuf,

    /// Format of the image: raw
    ///
    /// Without this, an image that looks like another format is refused.
    #[arg(long, value_enum, value_name = "FORMAT")]
    format: Option<FormatArg>,

    /// Also write the layout as JSON, with places in bytes
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    #[command(flatten)]
    overwrite: Overwrite,
}

/// Inspects.
pub fn run(args: &InspectArgs) -> Result<()> {
    let output = args
        .json
        .as_ref()
        .map(|path| Output::new(path).replacing(is_own).force(args.overwrite.force));
    output.as_ref().map_or(Ok(()), Output::check)?;
    let (file, size) = look_into(&args.image, args.format == Some(FormatArg::Raw))?;
    let mut image = Image { file, unread: None };
    let findings = examine(&mut image, size);
    if let Some((offset, error)) = image.unread {
        let name = args.image.display();
        tracing::warn!(
            "{name}: cannot be read at byte {offset} ({error}); the content there is unknown"
        );
    }
    show(&args.image, size, &findings);
    if let Some(output) = output {
        let json = format!("{:#}\n", as_json(&args.image, size, &findings));
        output.write(json.as_bytes())?;
    }
    Ok(())
}

/// An image, and what of it could not be read first.
struct Image {
    file: File,
    unread: Option<(u64, io::Error)>,
}

impl Disk for Image {
    fn read(&mut self, offset: u64, buffer: &mut [u8]) -> bool {
        let read = self.file.read_exact_at(buffer, offset);
        let is_read = read.is_ok();
        if let (Err(error), None) = (read, &self.unread) {
            self.unread = Some((offset, error));
        }
        is_read
    }
}

/// Prints for people.
fn show(path: &Path, size: u64, findings: &Findings) {
    println!("{}: {}, {}", path.display(), show_size(size), label_in_words(findings.label));
    for place in &findings.places {
        let name = place_in_words(place);
        match &place.content {
            Content::Unknown => println!("{name}: no known partition table or file system"),
            Content::Other(other) => println!("{name}: {other}, which is not looked into"),
            Content::FileSystem { name: filesystem, journal: Err(why) } => {
                println!("{name}: {filesystem}\n  no journal found: {why}");
            }
            Content::FileSystem { name: filesystem, journal: Ok(journal) } => {
                println!("{name}: {filesystem}");
                show_journal(journal);
            }
        }
    }
    if findings.layout.journals.is_empty() {
        println!("no journal found");
    }
}

fn show_journal(journal: &Journal) {
    let pieces = &journal.ranges;
    let count = match pieces.len() {
        1 => "in one piece".to_owned(),
        n => format!("in {n} pieces"),
    };
    println!("  journal: {} {count}", show_size(journal.len()));
    for piece in pieces.iter().take(SHOWN) {
        println!("    {}", bytes_in_words(piece));
    }
    if pieces.len() > SHOWN {
        println!("    and {} more, which --json has", pieces.len() - SHOWN);
    }
}

fn label_in_words(label: Option<Label>) -> String {
    match label {
        None => "no partition table".to_owned(),
        Some(Label::Mbr(sector)) => format!("partition table MBR in sectors of {sector} bytes"),
        Some(Label::Gpt(sector)) => format!("partition table GPT in sectors of {sector} bytes"),
        Some(Label::Damaged) => {
            "partition table GPT, which is damaged or contradicts its copy".to_owned()
        }
    }
}

fn place_in_words(place: &Place) -> String {
    match place.number {
        None => "the whole image".to_owned(),
        Some(number) => format!("partition {number}, {}", bytes_in_words(&place.range)),
    }
}

fn bytes_in_words(range: &Range<u64>) -> String {
    format!("{} from byte {} to {}", show_size(range.end - range.start), range.start, range.end)
}

/// The findings, as JSON. A place is its beginning and its length.
fn as_json(path: &Path, size: u64, findings: &Findings) -> Value {
    let pair = |range: &Range<u64>| [range.start, range.end - range.start];
    let (table, sector) = match findings.label {
        None => (None, None),
        Some(Label::Mbr(sector)) => (Some("mbr"), Some(sector)),
        Some(Label::Gpt(sector)) => (Some("gpt"), Some(sector)),
        Some(Label::Damaged) => (Some("damaged"), None),
    };
    let place = |place: &Place| {
        let (content, no_journal) = match &place.content {
            Content::Unknown => (None, None),
            Content::Other(other) => (Some(*other), None),
            Content::FileSystem { name, journal } => {
                (Some(*name), journal.as_ref().err().map(Why::to_string))
            }
        };
        json!({
            "partition": place.number,
            "range": pair(&place.range),
            "content": content,
            "no_journal": no_journal,
        })
    };
    let journal = |journal: &Journal| {
        json!({
            "filesystem": journal.filesystem,
            "kind": journal.kind,
            "way": journal.way,
            "ranges": journal.ranges.iter().map(pair).collect::<Vec<_>>(),
        })
    };
    json!({
        "image": path.display().to_string(),
        "size": size,
        "partition_table": table,
        "sector_size": sector,
        "places": findings.places.iter().map(place).collect::<Vec<_>>(),
        "journals": findings.layout.journals.iter().map(journal).collect::<Vec<_>>(),
    })
}

/// True if this command wrote the file.
fn is_own(content: &[u8]) -> bool {
    let value: Option<Value> = serde_json::from_slice(content).ok();
    value.is_some_and(|value| value["journals"].is_array() && value["places"].is_array())
}
