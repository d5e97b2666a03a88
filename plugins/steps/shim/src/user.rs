//! The user of a process, by the image's own `/etc/passwd`: a static executable has no name service.

/// A user.
#[derive(Debug, PartialEq, Eq)]
pub struct ContainerUser {
    /// User ID.
    pub uid: u32,
    /// Group ID.
    pub gid: u32,
    /// Home directory, if the user is listed.
    pub home: Option<String>,
}

/// Looks up a user by name, or by number with an optional group (`1000:1000`). A number need not be listed.
pub fn find(passwd: &str, user: &str) -> Option<ContainerUser> {
    let (name, group) = match user.split_once(':') {
        Some((name, group)) => (name, Some(group.parse().ok()?)),
        None => (user, None),
    };
    let listed = passwd
        .lines()
        .find_map(|line| parse(line).filter(|(n, found)| *n == name || found.uid.to_string() == name));
    match listed {
        Some((_, found)) => Some(ContainerUser {
            gid: group.unwrap_or(found.gid),
            ..found
        }),
        None => {
            let uid = name.parse().ok()?;
            Some(ContainerUser {
                uid,
                gid: group.unwrap_or(uid),
                home: None,
            })
        }
    }
}

/// `CAP_SETGID` and `CAP_SETUID` in the sets of capabilities of `/proc/PID/status` (capabilities(7)).
const CHANGE_CAPABILITIES: u64 = 1 << 6 | 1 << 7;

/// Returns whether a process with this `/proc/PID/status` may change its user and group.
pub fn may_change(status: &str) -> bool {
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
    effective.is_some_and(|set| set & CHANGE_CAPABILITIES == CHANGE_CAPABILITIES)
}

fn parse(line: &str) -> Option<(&str, ContainerUser)> {
    let mut fields = line.split(':');
    let name = fields.next()?;
    let _password = fields.next()?;
    let (uid, gid) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    let home = fields
        .nth(1)
        .map(ToOwned::to_owned)
        .filter(|home| !home.is_empty());
    Some((name, ContainerUser { uid, gid, home }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\n# comment\nbuild:x:1000:1001::/home/build:/bin/sh\n";

    #[test]
    fn user_may_be_changed_with_both_capabilities() {
        let status = |set| format!("Name:\tshim\nCapEff:\t{set}\nCapBnd:\t000001ffffffffff\n");
        assert!(may_change(&status("00000000000000c0")));
        assert!(may_change(&status("000001ffffffffff")));
        for set in ["0000000000000080", "0000000000000000", "", "unknown"] {
            assert!(!may_change(&status(set)), "{set}");
        }
        assert!(!may_change(""));
    }

    #[test]
    fn user_is_found_by_name_and_number() {
        let build = |gid| {
            Some(ContainerUser {
                uid: 1000,
                gid,
                home: Some("/home/build".into()),
            })
        };
        assert_eq!(find(PASSWD, "build"), build(1001));
        assert_eq!(find(PASSWD, "1000"), build(1001));
        assert_eq!(find(PASSWD, "build:7"), build(7));
        assert_eq!(
            find(PASSWD, "2000"),
            Some(ContainerUser {
                uid: 2000,
                gid: 2000,
                home: None
            })
        );
        for unknown in ["nobody", "", "1000:staff", "-1", "4294967296"] {
            assert_eq!(find(PASSWD, unknown), None, "{unknown}");
        }
    }
}
