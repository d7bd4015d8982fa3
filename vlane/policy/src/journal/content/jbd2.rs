//! JBD2's journal: ext3's, ext4's.
//!
//! A transaction is descriptor blocks, each followed by the blocks that it describes, perhaps
//! revoke blocks, and at the end a commit block, all with the transaction's number. The next
//! transaction begins right behind it and has the next number. Behind the journal's last block
//! comes its first. Its superblock gives its length, but not the places of its pieces, and is
//! written rarely; so the places of the transactions count.
//!
//! Believed is a chain of [`ENOUGH`] transactions whose numbers rise by one, each right behind the
//! one before, such that
//!
//! - the blocks between a descriptor and its commit were written, all of them, in that time: no gap
//!   is taken for a part of the journal;
//! - no request has blocks of two transactions. JBD2 begins a transaction when the one before is on
//!   the disk, so it never sends such a request. A copy of an image does: it is written in pieces
//!   of the copier's size.
//!
//! Two cases can still deceive it: a copy of a journal block by block (O_DIRECT, 4 KiB), and a
//! guest that wants to. A verdict by content leads only to dropped page cache, so both get slower
//! reads of their writes, and only until other data is written there.
//!
//! The known part ends where the chain leaves the part written so far (the end of the journal, or
//! of a piece of it). It is taken up again where a block with the right number appears: at once
//! inside the known part or the superblock's, elsewhere after [`ENOUGH`] transactions.

use std::ops::Range;

use super::{AHEAD, Content, FORGIVEN, Head, JBD2, MOST_CHAINS, Pieces};

/// Transactions that make a journal.
const ENOUGH: u32 = 3;
/// Transactions that may be missing where a journal is taken up again (mounted again after a
/// crash).
const MISSING: u32 = 64;
/// The largest block.
const LARGEST_BLOCK: u64 = 64 << 10;

const DESCRIPTOR: u32 = 1;
const COMMIT: u32 = 2;
const SUPERBLOCK: u32 = 3;
const SUPERBLOCK_2: u32 = 4;
const REVOKE: u32 = 5;

/// A journal, or a candidate.
#[derive(Debug)]
pub(super) struct Jbd2 {
    /// The ranges that belong to it.
    pub(super) pieces: Pieces,
    /// The blocks that were written last, one right behind the other; up to `sure`, they are its
    /// own.
    run: Range<u64>,
    sure: u64,
    /// The transaction that was seen last, whether its commit is still missing, and the write that
    /// it began with.
    sequence: u32,
    is_open: bool,
    began: u64,
    /// Where that write was.
    from: u64,
    /// The first transaction, and the write that it began with.
    first: u32,
    born: u64,
    /// The last write that was its own.
    last: u64,
    /// Commits so far.
    commits: u32,
    /// Up to where it is believed to go on behind the run.
    ahead: u64,
    /// From the superblock: where it begins, and where it would end in one piece.
    named: Option<Range<u64>>,
    /// Bytes of other writers in it.
    strange: u64,
}

/// The journal that a superblock names.
#[derive(Debug, Clone)]
pub(super) struct Named {
    range: Range<u64>,
    /// Its blocks before the first that transactions use.
    head: u64,
}

/// Follows a write; says whether it is a journal's.
pub(super) fn follow(content: &mut Content, range: &Range<u64>, heads: &[Head]) -> bool {
    let of_jbd2 = heads.iter().filter(|head| head.word(0) == JBD2);
    let mut of_transactions =
        of_jbd2.clone().filter(|head| matches!(head.word(1), DESCRIPTOR | COMMIT | REVOKE));
    let Some(first) = of_transactions.next() else {
        let mut is_own = false;
        for head in of_jbd2.filter(|head| matches!(head.word(1), SUPERBLOCK | SUPERBLOCK_2)) {
            is_own |= superblock(content, head);
        }
        return is_own || described(content, range);
    };
    if of_transactions.any(|head| head.word(2) != first.word(2)) {
        // Of two transactions: a copy.
        content.jbd2.retain(|chain| chain.is_sure() || !chain.touches(range));
        return false;
    }
    let mut is_own = false;
    for head in of_jbd2.filter(|head| matches!(head.word(1), DESCRIPTOR | COMMIT | REVOKE)) {
        is_own |= block(content, range, head);
    }
    is_own
}

/// Blocks without a magic number: those that a descriptor describes, if they come where they must.
fn described(content: &mut Content, range: &Range<u64>) -> bool {
    let mut is_own = false;
    for chain in
        content.jbd2.iter_mut().filter(|chain| chain.is_open && chain.run.end == range.start)
    {
        (chain.run.end, chain.last) = (range.end, content.clock);
        is_own = true;
    }
    is_own
}

/// A superblock of a journal; says whether it is one's that is known.
fn superblock(content: &mut Content, head: &Head) -> bool {
    let [block, length, first, sequence, start] = [3, 4, 5, 6, 7].map(|at| head.word(at));
    let is_possible = (1024..=LARGEST_BLOCK).contains(&u64::from(block))
        && block.is_power_of_two()
        && first < length;
    let bytes = u64::from(block) * u64::from(length);
    let end = head.offset.checked_add(bytes).filter(|end| *end <= content.size);
    let (true, Some(end)) = (is_possible, end) else { return false };
    let named = Named { range: head.offset..end, head: u64::from(block) * u64::from(first.max(1)) };
    let Content { jbd2, is_changed, clock, .. } = content;
    let mut is_own = false;
    jbd2.retain_mut(|chain| {
        if !chain.is_named_by(&named) {
            return true;
        }
        // The numbers go round after 2^32: their distance does not.
        if start == 0 && chain.sequence.wrapping_sub(sequence).cast_signed() > 2 {
            // An empty journal, whose next number is one that was used already: it was made anew.
            *is_changed |= chain.is_sure();
            return false;
        }
        (is_own, chain.last) = (true, *clock);
        chain.name(&named);
        *is_changed |= chain.is_sure();
        true
    });
    let known = &mut content.superblocks;
    known.retain(|known| known.range.start != named.range.start);
    known.truncate(MOST_CHAINS - 1);
    known.insert(0, named);
    is_own
}

/// A descriptor, commit or revoke block; says whether it continues a journal that is known or may
/// become one.
fn block(content: &mut Content, range: &Range<u64>, head: &Head) -> bool {
    let (kind, sequence) = (head.word(1), head.word(2));
    let Content { jbd2, runs, clock, .. } = content;
    // True if the run reaches the block, with the writes behind it meanwhile.
    let reaches = |chain: &Jbd2| {
        let mut end = chain.run.end;
        // More than a few parts out of order are not put together.
        for _ in 0..4 {
            if end < range.start
                && let Some(run) = runs.around(end, chain.born)
            {
                end = run.end;
            }
        }
        let from = if chain.sequence == sequence { chain.from } else { chain.sure };
        end >= range.start && from <= range.start
    };
    let goes_on = |chain: &Jbd2| chain.is_next(sequence) && reaches(chain);
    let sure_first = |chain: &&mut Jbd2| (chain.is_sure(), chain.last);
    let chain = if let Some(chain) =
        jbd2.iter_mut().filter(|chain| goes_on(chain)).max_by_key(sure_first)
    {
        chain
    } else if let Some(chain) =
        jbd2.iter_mut().find(|chain| chain.is_taken_up(head.offset, sequence))
    {
        // At another of its places.
        chain.leave();
        let since = if chain.sequence == sequence { chain.began } else { *clock };
        let begin = runs.around(head.offset, since).map_or(range.start, |run| run.start);
        chain.run = begin.min(range.start)..range.end;
        chain.from = chain.run.start;
        content.is_changed = true;
        chain
    } else if kind == COMMIT {
        return false;
    } else {
        begin(jbd2, range, sequence, *clock);
        return true;
    };
    let before = chain.sure.min(range.end);
    chain.run.end = chain.run.end.max(range.end);
    (chain.sure, chain.last) = (chain.run.end, *clock);
    if sequence != chain.sequence {
        (chain.sequence, chain.began, chain.from) = (sequence, *clock, range.start);
    }
    chain.is_open = kind != COMMIT;
    chain.pieces.add(chain.run.clone());
    if kind == COMMIT {
        chain.commits = chain.commits.saturating_add(1);
        // Its own writes outweigh those of others.
        chain.strange = chain.strange.saturating_sub(range.end - before);
        if chain.commits == ENOUGH {
            content.is_changed = true;
            become_sure(content);
            return true;
        }
    }
    content.is_changed |= chain.is_sure() && chain.look_ahead();
    true
}

/// A new chain, in the place of the one that may become a journal and has waited longest for it.
fn begin(jbd2: &mut Vec<Jbd2>, range: &Range<u64>, sequence: u32, clock: u64) {
    if jbd2.len() >= MOST_CHAINS {
        let unsure = jbd2.iter().enumerate().filter(|(_, chain)| !chain.is_sure());
        match unsure.min_by_key(|(_, chain)| chain.last) {
            Some((place, _)) => drop(jbd2.remove(place)),
            None => return,
        }
    }
    let mut pieces = Pieces::default();
    pieces.add(range.clone());
    jbd2.push(Jbd2 {
        pieces,
        run: range.clone(),
        sure: range.end,
        sequence,
        is_open: true,
        began: clock,
        from: range.start,
        first: sequence,
        born: clock,
        last: clock,
        commits: 0,
        ahead: 0,
        named: None,
        strange: 0,
    });
}

/// A chain has just got enough commits: it is a journal, a part of one that is known, or takes the
/// place of one.
fn become_sure(content: &mut Content) {
    let Some(place) =
        content.jbd2.iter().position(|chain| chain.commits == ENOUGH && chain.ahead == 0)
    else {
        return;
    };
    let mut new = content.jbd2.remove(place);
    // One that has been silent since and has got as far: it went on here.
    let goes_on = |old: &Jbd2| {
        old.is_sure() && old.last < new.born && new.first.wrapping_sub(old.sequence) <= 2
    };
    if let Some(place) = content.jbd2.iter().position(goes_on) {
        let old = content.jbd2.remove(place);
        new.pieces.add_all(&old.pieces);
        (new.named, new.commits) = (old.named, old.commits.saturating_add(new.commits));
    }
    content.jbd2.retain(|old| old.pieces.overlap(&new.run) == 0);
    if let Some(named) = content.superblocks.iter().find(|named| new.is_named_by(named)) {
        new.name(named);
    }
    new.commits = new.commits.max(ENOUGH + 1);
    new.look_ahead();
    content.jbd2.push(new);
}

impl Jbd2 {
    /// True if it is believed in.
    pub(super) fn is_sure(&self) -> bool {
        self.commits >= ENOUGH
    }

    /// True if a block of this transaction may come next.
    fn is_next(&self, sequence: u32) -> bool {
        sequence.wrapping_sub(self.sequence) == u32::from(!self.is_open)
    }

    /// True if a block of this transaction means that the journal is written there now.
    fn is_taken_up(&self, at: u64, sequence: u32) -> bool {
        let later = sequence.wrapping_sub(self.sequence);
        let is_its =
            self.pieces.has(at) || self.named.as_ref().is_some_and(|named| named.contains(&at));
        self.is_sure() && later <= MISSING && (later > 0 || self.is_open) && is_its
    }

    /// True if a superblock can be its own.
    fn is_named_by(&self, named: &Named) -> bool {
        match &self.named {
            Some(known) => known.start == named.range.start,
            None => named.range.start < self.run.start && self.run.end <= named.range.end,
        }
    }

    fn name(&mut self, named: &Named) {
        self.pieces.add(named.range.start..named.range.start + named.head);
        self.named = Some(named.range.clone());
    }

    fn touches(&self, range: &Range<u64>) -> bool {
        range.start <= self.run.end && self.run.start <= range.end
    }

    /// It is written elsewhere from now on.
    fn leave(&mut self) {
        let end = if self.is_open { self.run.end } else { self.sure };
        self.pieces.add(self.run.start..end);
        self.ahead = 0;
    }

    /// Looks farther ahead if it has come near to the end of its believed part; returns true if it
    /// did.
    fn look_ahead(&mut self) -> bool {
        let known = self.pieces.around(self.run.end.saturating_sub(1)).map_or(0, |piece| piece.end);
        let is_far = self.ahead.max(known) >= self.run.end.saturating_add(AHEAD / 2);
        if !is_far {
            self.ahead = self.run.end.saturating_add(AHEAD);
        }
        !is_far
    }

    /// Notes another writer's write to a range; returns true if it was too much.
    pub(super) fn is_written_over(&mut self, range: &Range<u64>) -> bool {
        self.strange = self.strange.saturating_add(self.pieces.overlap(range));
        self.strange > FORGIVEN.max(self.pieces.len() / 8)
    }

    /// Returns the ranges of the verdict.
    pub(super) fn ranges(&self, size: u64) -> Vec<Range<u64>> {
        let mut pieces = self.pieces.clone();
        let mut end = self.ahead.min(size);
        if let Some(named) = &self.named {
            // Its length, not its end: that lies farther where there are holes.
            let unknown = (named.end - named.start).saturating_sub(pieces.len());
            end = end.min(self.run.end.saturating_add(unknown));
        }
        pieces.add(self.run.end..end);
        pieces.ranges().to_vec()
    }
}
