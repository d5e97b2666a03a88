//! Pagination by id, newest first, of builds and resource versions.

/// Query parameters of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageRequest {
    /// Oldest id; the page starts there and goes up.
    pub from: Option<u64>,
    /// Newest id; the page starts there and goes down.
    pub to: Option<u64>,
    /// Maximum number of ids.
    pub limit: usize,
}

impl PageRequest {
    /// Parses query parameters. A value that is not a positive number is ignored, as by Concourse.
    pub fn from_query<'a>(get: impl Fn(&str) -> Option<&'a str>) -> Self {
        let number = |key| get(key).and_then(|v| v.parse::<u64>().ok()).filter(|n| *n > 0);
        Self {
            from: number("from"),
            to: number("to"),
            limit: number("limit").and_then(|n| n.try_into().ok()).unwrap_or(100),
        }
    }
}

/// One page, and the starts of its neighbours.
#[derive(Debug, PartialEq, Eq)]
pub struct Page {
    /// Ids, newest first.
    pub ids: Vec<u64>,
    /// Parameter `from` of the page with newer ids.
    pub newer: Option<u64>,
    /// Parameter `to` of the page with older ids.
    pub older: Option<u64>,
}

/// Cuts a page out of ids in ascending order.
pub fn cut_page(all: &[u64], request: PageRequest) -> Page {
    let low = request
        .from
        .map_or(0, |from| all.partition_point(|id| *id < from));
    let high = request
        .to
        .map_or(all.len(), |to| all.partition_point(|id| *id <= to))
        .max(low);
    let range = match (request.from, request.to) {
        (Some(_), None) => low..high.min(low.saturating_add(request.limit)),
        _ => low.max(high.saturating_sub(request.limit))..high,
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
        cut_page(&[2, 3, 5, 8, 9], PageRequest { from, to, limit })
    }

    #[test]
    fn pages_are_newest_first_and_link_their_neighbours() {
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
    fn missing_ids_are_bounds() {
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
            cut_page(
                &[],
                PageRequest {
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
    fn invalid_parameters_are_ignored() {
        let get = |key: &str| {
            [("from", "x"), ("to", "-1"), ("limit", "0")]
                .iter()
                .find(|p| p.0 == key)
                .map(|p| p.1)
        };
        assert_eq!(
            PageRequest::from_query(get),
            PageRequest {
                from: None,
                to: None,
                limit: 100
            }
        );
    }
}
