//! The limit of open file descriptors.

use rustix::process::{Resource, getrlimit, setrlimit};

/// Raises the soft limit of open file descriptors to the hard one, and returns the soft limit that
/// holds then; `None` means that there is none.
///
/// The soft limit is 1,024 nearly everywhere, for the sake of programs that call `select`. A
/// program that serves many needs more, and none of ours calls `select`. A system that refuses
/// leaves the limit as it was.
pub fn raise_descriptor_limit() -> Option<u64> {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        limit.current = limit.maximum;
        let _ = setrlimit(Resource::Nofile, limit);
    }
    getrlimit(Resource::Nofile).current
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn soft_limit_becomes_the_hard_one() {
        let mut limit = getrlimit(Resource::Nofile);
        let hard = limit.maximum;
        limit.current = Some(hard.map_or(256, |hard| hard.min(256)));
        setrlimit(Resource::Nofile, limit).expect("lowering is always permitted");
        assert_eq!(raise_descriptor_limit(), hard);
        assert_eq!(raise_descriptor_limit(), hard, "nothing is left to raise");
    }
}
