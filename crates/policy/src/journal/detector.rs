//! All three ways together.

use std::ops::Range;
use std::sync::Arc;

use super::layout::Layout;
use super::{Head, Journal, Map};

/// Finds a volume's journals from what is written to it. One per volume; it is told of writes in the order in which they are begun, as far as
/// that is known.
#[derive(Debug)]
pub struct Detector {
    size: u64,
    layout: Layout,
    needs_layout: bool,
    map: Arc<Map>,
}

impl Detector {
    /// For a volume of `size` bytes, of which nothing is known.
    pub fn new(size: u64) -> Detector {
        Detector { size, layout: Layout::default(), needs_layout: true, map: Arc::new(Map::default()) }
    }

    /// The volume has another size.
    pub fn resized(&mut self, size: u64) {
        self.size = size;
        self.needs_layout = true;
    }

    /// Whether the layout is to be read (again): at first, and since the guest wrote over a part of it.
    pub fn needs_layout(&self) -> bool {
        self.needs_layout
    }

    /// The layout was read, after all writes that the detector was told of.
    pub fn set_layout(&mut self, layout: Layout) {
        self.needs_layout = false;
        self.layout = layout;
        self.map = Arc::new(Map::new(&self.layout.journals));
    }

    /// The guest writes to a range; `heads` are those blocks of it that begin with a magic number, in order.
    pub fn write(&mut self, range: Range<u64>, _heads: &[Head]) {
        let watched = &self.layout.watched;
        let first = watched.partition_point(|watched| watched.end <= range.start);
        self.needs_layout |= watched.get(first).is_some_and(|watched| watched.start < range.end);
    }

    /// The guest discards a range, or has it zeroed.
    pub fn cleared(&mut self, range: Range<u64>) {
        self.write(range, &[]);
    }

    /// What is known now. The same [`Arc`] as long as nothing changes.
    pub fn map(&self) -> &Arc<Map> {
        &self.map
    }

    /// The journals that are known now.
    pub fn journals(&self) -> &[Journal] {
        &self.layout.journals
    }
}
