//! Pages of ids, newest first, as builds and resource versions are listed.

/// What a client asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// The oldest id wanted; the page starts there and goes up.
    pub from: Option<u64>,
    /// The newest id wanted; the page starts there and goes down.
    pub to: Option<u64>,
    /// How many at most.
    pub limit: usize,
}

impl Window {
    /// From query parameters; what is no positive number counts as not given.
    pub fn of<'a>(get: impl Fn(&str) -> Option<&'a str>) -> Self {
        let number = |key| get(key).and_then(|v| v.parse::<u64>().ok()).filter(|n| *n > 0);
        Self {
            from: number("from"),
            to: number("to"),
            limit: number("limit").and_then(|n| n.try_into().ok()).unwrap_or(100),
        }
    }
}

/// One page, and where its neighbours start.
#[derive(Debug, PartialEq, Eq)]
pub struct Page {
    /// Newest first.
    pub ids: Vec<u64>,
    /// `from` of the page of newer ones.
    pub newer: Option<u64>,
    /// `to` of the page of older ones.
    pub older: Option<u64>,
}

/// Cuts a page out of ids sorted upwards.
pub fn cut(all: &[u64], window: Window) -> Page {
    let low = window.from.map_or(0, |from| all.partition_point(|id| *id < from));
    let high = window
        .to
        .map_or(all.len(), |to| all.partition_point(|id| *id <= to))
        .max(low);
    let range = match (window.from, window.to) {
        (Some(_), None) => low..high.min(low.saturating_add(window.limit)),
        _ => low.max(high.saturating_sub(window.limit))..high,
    };
    let ids: Vec<u64> = all[range.clone()].iter().rev().copied().collect();
    let beside = |there: bool, index: usize| {
        (there && !ids.is_empty())
            .then(|| all.get(index).copied())
            .flatten()
    };
    Page {
        newer: beside(true, range.end),
        older: beside(range.start > 0, range.start.wrapping_sub(1)),
        ids,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(from: Option<u64>, to: Option<u64>, limit: usize) -> Page {
        cut(&[2, 3, 5, 8, 9], Window { from, to, limit })
    }

    #[test]
    fn newest_first_and_where_the_neighbours_start() {
        let first = page(None, None, 2);
        assert_eq!(
            first,
            Page {
                ids: vec![9, 8],
                newer: None,
                older: Some(5)
            }
        );
        let second = page(None, first.older, 2);
        assert_eq!(
            second,
            Page {
                ids: vec![5, 3],
                newer: Some(8),
                older: Some(2)
            }
        );
        assert_eq!(
            page(None, second.older, 2),
            Page {
                ids: vec![2],
                newer: Some(3),
                older: None
            }
        );
        assert_eq!(page(second.newer, None, 2), first, "and back");
    }

    #[test]
    fn ids_that_are_not_there() {
        assert_eq!(page(Some(4), Some(8), 9).ids, [8, 5]);
        assert_eq!(
            page(Some(10), None, 9),
            Page {
                ids: vec![],
                newer: None,
                older: None
            }
        );
        assert!(page(Some(9), Some(2), 9).ids.is_empty());
        assert!(
            cut(
                &[],
                Window {
                    from: None,
                    to: None,
                    limit: 1
                }
            )
            .ids
            .is_empty()
        );
    }

    #[test]
    fn what_is_no_number_is_not_given() {
        let get = |key: &str| {
            [("from", "x"), ("to", "-1"), ("limit", "0")]
                .iter()
                .find(|p| p.0 == key)
                .map(|p| p.1)
        };
        assert_eq!(
            Window::of(get),
            Window {
                from: None,
                to: None,
                limit: 100
            }
        );
    }
}
