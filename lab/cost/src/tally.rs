//! Counts of events, by names from elsewhere.

use std::collections::BTreeMap;

/// Counts by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally(pub BTreeMap<String, u64>);

impl Tally {
    /// How often one came.
    pub fn of(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or(0)
    }

    /// How often all came.
    pub fn total(&self) -> u64 {
        self.0.values().sum()
    }

    /// Counts one so many times more.
    pub fn add(&mut self, name: impl Into<String>, times: u64) {
        let count = self.0.entry(name.into()).or_default();
        *count = count.saturating_add(times);
    }

    /// Counts since `before`, an earlier look, without unchanged ones; a fallen count is not
    /// negative.
    pub fn since(&self, before: &Self) -> Self {
        let came =
            self.0.iter().map(|(name, now)| (name.clone(), now.saturating_sub(before.of(name))));
        Self(came.filter(|(_, count)| *count > 0).collect())
    }
}
