//! Dates as reports write them: RFC 3339 in UTC, to the second.

use std::time::SystemTime;

/// The time now.
pub fn now() -> String {
    rfc3339(SystemTime::now())
}

/// A time, as in `2026-03-01T12:00:00Z`; what lies before 1970 is shown as its beginning.
pub fn rfc3339(time: SystemTime) -> String {
    humantime::format_rfc3339_seconds(time.max(SystemTime::UNIX_EPOCH)).to_string()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn known_moments() {
        // By date -u -d @N +%FT%TZ.
        let at = |seconds| rfc3339(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(951_827_696), "2000-02-29T12:34:56Z");
        assert_eq!(at(4_107_542_400), "2100-03-01T00:00:00Z");
        assert_eq!(
            rfc3339(SystemTime::UNIX_EPOCH - Duration::from_secs(1)),
            "1970-01-01T00:00:00Z"
        );
    }
}
