//! Time as Kubernetes writes it.

/// Seconds since the Unix epoch as `2006-01-02T15:04:05Z`.
#[must_use]
pub fn rfc3339(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Howard Hinnant's days-to-civil: years begin in March, so that the leap
    // day is the last of its year.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 {
        shifted_month + 3
    } else {
        shifted_month - 9
    };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Seconds since the Unix epoch of a time as [`rfc3339`] writes it; a fraction of a second is left out.
#[must_use]
pub fn from_rfc3339(text: &str) -> Option<u64> {
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let mut parts = date.split('-').map(str::parse::<u64>);
    let (year, month, day) = (parts.next()?.ok()?, parts.next()?.ok()?, parts.next()?.ok()?);
    let time = time.split('.').next()?;
    let mut parts = time.split(':').map(str::parse::<u64>);
    let (hour, minute, second) = (parts.next()?.ok()?, parts.next()?.ok()?, parts.next()?.ok()?);
    if !(1970..=9999).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    // Days-from-civil, the other way round.
    let year = year - u64::from(month <= 2);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let era = year / 400;
    let year_of_era = year % 400;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    let days = (era * 146_097 + day_of_era).checked_sub(719_468)?;
    (hour < 24 && minute < 60 && second < 61).then(|| days * 86_400 + hour * 3600 + minute * 60 + second)
}

#[cfg(test)]
mod tests {
    #[test]
    fn time_survives_a_round_trip() {
        use super::{from_rfc3339, rfc3339};
        for seconds in (0..5_000_000_000).step_by(9_876_543) {
            assert_eq!(from_rfc3339(&rfc3339(seconds)), Some(seconds), "{seconds}");
        }
        assert_eq!(from_rfc3339("2026-11-21T04:21:24.987Z"), Some(1_795_234_884));
        for wrong in [
            "",
            "Z",
            "T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-01-01T24:00:00Z",
            "2026-01-01T00:00:00+01:00",
            "1969-12-31T23:59:59Z",
        ] {
            assert_eq!(from_rfc3339(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn time_is_formatted_as_rfc3339() {
        let rfc3339 = super::rfc3339;
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(rfc3339(1_735_689_599), "2024-12-31T23:59:59Z");
        assert_eq!(rfc3339(1_795_234_884), "2026-11-21T04:21:24Z");
        assert_eq!(rfc3339(4_107_542_400), "2100-03-01T00:00:00Z");
    }
}
