//! Journals by pattern: ranges that are written in order and cyclically.
