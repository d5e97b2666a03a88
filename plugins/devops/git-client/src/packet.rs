//! Packet lines (gitprotocol-common) and the commands of protocol version 2 (gitprotocol-v2).

/// Ends a message.
const FLUSH_PACKET: &[u8] = b"0000";
/// Ends a section of a message.
const DELIMITER_PACKET: &[u8] = b"0001";
/// Bytes of the length before each line.
const LENGTH_BYTES: usize = 4;

/// A packet.
#[derive(Debug, PartialEq, Eq)]
enum Packet<'a> {
    /// `0000`, `0001` or `0002`.
    Special,
    Line(&'a [u8]),
}

/// What a server can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerCapabilities {
    /// It leaves out objects that a filter names.
    pub can_filter: bool,
}

impl ServerCapabilities {
    /// Parses an advertisement.
    ///
    /// # Errors
    /// The server does not speak version 2, or names objects by SHA-256.
    pub fn parse(body: &[u8]) -> Result<Self, String> {
        let mut is_version_2 = false;
        let mut can_filter = false;
        for packet in Packets(body) {
            let Packet::Line(line) = packet? else { continue };
            let line = text(line);
            match line.split_once('=').unwrap_or((&line, "")) {
                ("version 2", _) => is_version_2 = true,
                ("fetch", features) => can_filter = features.split(' ').any(|feature| feature == "filter"),
                ("object-format", format) if format != "sha1" => {
                    return Err(format!("its object format {format} is not supported"));
                }
                _ => {}
            }
        }
        if !is_version_2 {
            return Err("it does not speak version 2 of git's protocol".into());
        }
        Ok(Self { can_filter })
    }
}

/// A reference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GitReference {
    /// Its full name, such as `refs/heads/main`.
    pub name: String,
    /// The object that it names.
    pub id: String,
    /// The commit that an annotated tag points to.
    pub peeled: Option<String>,
    /// The reference that a symbolic one names.
    pub target: Option<String>,
}

impl GitReference {
    /// The commit.
    #[must_use]
    pub fn commit(&self) -> &str {
        self.peeled.as_deref().unwrap_or(&self.id)
    }
}

/// Builds the command that lists references by the prefixes of their names.
#[must_use]
pub fn list_command(prefixes: &[&str]) -> Vec<u8> {
    let mut command = begin_command("ls-refs");
    push_line(&mut command, "peel");
    push_line(&mut command, "symrefs");
    for prefix in prefixes {
        push_line(&mut command, &["ref-prefix ", prefix].concat());
    }
    command.extend_from_slice(FLUSH_PACKET);
    command
}

/// Builds the command that fetches one object. A commit comes without its history.
#[must_use]
pub fn fetch_command(id: &str, is_commit: bool) -> Vec<u8> {
    let mut command = begin_command("fetch");
    push_line(&mut command, "no-progress");
    if is_commit {
        push_line(&mut command, "deepen 1");
    }
    push_line(&mut command, "filter tree:0");
    push_line(&mut command, &["want ", id].concat());
    push_line(&mut command, "done");
    command.extend_from_slice(FLUSH_PACKET);
    command
}

fn begin_command(name: &str) -> Vec<u8> {
    let mut command = Vec::new();
    push_line(&mut command, &["command=", name].concat());
    push_line(&mut command, "object-format=sha1");
    command.extend_from_slice(DELIMITER_PACKET);
    command
}

fn push_line(command: &mut Vec<u8>, line: &str) {
    let length = LENGTH_BYTES + line.len() + 1;
    command.extend_from_slice(format!("{length:04x}{line}\n").as_bytes());
}

/// Parses the response to [`list_command`].
///
/// # Errors
/// The response is malformed, or the server's error.
pub fn parse_references(body: &[u8]) -> Result<Vec<GitReference>, String> {
    let mut references = Vec::new();
    for packet in Packets(body) {
        let Packet::Line(line) = packet? else { continue };
        let line = text(line);
        let mut words = line.split(' ');
        let (Some(id), Some(name)) = (words.next().filter(|id| is_id(id)), words.next()) else {
            // A symbolic reference to a branch without commits.
            if line.starts_with("unborn ") {
                continue;
            }
            return Err("a reference is malformed".into());
        };
        let mut reference = GitReference {
            name: name.to_owned(),
            id: id.to_owned(),
            peeled: None,
            target: None,
        };
        for word in words {
            match word.split_once(':') {
                Some(("peeled", id)) if is_id(id) => reference.peeled = Some(id.to_owned()),
                Some(("symref-target", name)) => reference.target = Some(name.to_owned()),
                _ => {}
            }
        }
        references.push(reference);
    }
    Ok(references)
}

/// The pack in the response to [`fetch_command`].
///
/// # Errors
/// The response is malformed, or the server's error.
pub fn parse_pack(body: &[u8]) -> Result<Vec<u8>, String> {
    const PACK_DATA: u8 = 1;
    const FATAL_ERROR: u8 = 3;
    let mut pack = Vec::new();
    let mut is_pack = false;
    for packet in Packets(body) {
        let Packet::Line(line) = packet? else { continue };
        if !is_pack {
            is_pack = line == b"packfile\n";
            continue;
        }
        match line.split_first() {
            Some((&PACK_DATA, data)) => pack.extend_from_slice(data),
            Some((&FATAL_ERROR, message)) => return Err(format!("it reports {}", text(message))),
            _ => {}
        }
    }
    match is_pack {
        true => Ok(pack),
        false => Err("it has no pack".into()),
    }
}

/// The text of a line, without its line feed.
fn text(line: &[u8]) -> String {
    String::from_utf8_lossy(line.strip_suffix(b"\n").unwrap_or(line)).into_owned()
}

fn is_id(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// The packets of a message.
struct Packets<'a>(&'a [u8]);

impl<'a> Iterator for Packets<'a> {
    type Item = Result<Packet<'a>, String>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let packet = self.split_packet();
        if packet.is_err() {
            self.0 = &[];
        }
        Some(packet)
    }
}

impl<'a> Packets<'a> {
    fn split_packet(&mut self) -> Result<Packet<'a>, String> {
        let malformed = || "a packet is malformed or cut off".to_owned();
        let (length, rest) = self.0.split_at_checked(LENGTH_BYTES).ok_or_else(malformed)?;
        let length = std::str::from_utf8(length).ok();
        let length = length.and_then(|length| usize::from_str_radix(length, 16).ok());
        let length = length.ok_or_else(malformed)?;
        if length < LENGTH_BYTES {
            self.0 = rest;
            return if length < 3 {
                Ok(Packet::Special)
            } else {
                Err(malformed())
            };
        }
        let (line, rest) = rest
            .split_at_checked(length - LENGTH_BYTES)
            .ok_or_else(malformed)?;
        self.0 = rest;
        match line.strip_prefix(b"ERR ") {
            Some(message) => Err(format!("it reports {}", text(message))),
            None => Ok(Packet::Line(line)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(lines: &[&str]) -> Vec<u8> {
        let mut message = Vec::new();
        for line in lines {
            push_line(&mut message, line);
        }
        message.extend_from_slice(FLUSH_PACKET);
        message
    }

    #[test]
    fn commands_have_the_lengths_of_their_lines() {
        let command = list_command(&["refs/heads/main"]);
        let expected = "0014command=ls-refs\n0017object-format=sha1\n00010009peel\n000csymrefs\n\
                        001fref-prefix refs/heads/main\n0000";
        assert_eq!(String::from_utf8_lossy(&command), expected);
        let id = "a".repeat(40);
        let commit = String::from_utf8(fetch_command(&id, true)).expect("text");
        assert!(
            commit.contains("deepen 1\n") && commit.contains(&format!("want {id}\n")),
            "{commit}"
        );
        assert!(!String::from_utf8_lossy(&fetch_command(&id, false)).contains("deepen"));
    }

    #[test]
    fn capabilities_require_version_2_and_sha1() {
        let full = [
            "version 2",
            "agent=git/2.47",
            "fetch=shallow wait-for-done filter",
            "object-format=sha1",
        ];
        assert_eq!(
            ServerCapabilities::parse(&message(&full)),
            Ok(ServerCapabilities { can_filter: true })
        );
        let bare = ServerCapabilities::parse(&message(&["version 2", "fetch=shallow"]));
        assert_eq!(bare, Ok(ServerCapabilities { can_filter: false }));
        let first = message(&["# service=git-upload-pack"]);
        let both = [first, message(&full)].concat();
        assert_eq!(
            ServerCapabilities::parse(&both),
            Ok(ServerCapabilities { can_filter: true })
        );
        for wrong in [&["version 1"][..], &[], &["version 2", "object-format=sha256"]] {
            assert!(ServerCapabilities::parse(&message(wrong)).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn references_have_their_targets_and_peeled_commits() {
        let (one, two) = ("1".repeat(40), "2".repeat(40));
        let lines = [
            format!("{one} HEAD symref-target:refs/heads/main"),
            format!("{one} refs/tags/v1 peeled:{two}"),
            "unborn HEAD symref-target:refs/heads/x".into(),
        ];
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let references = parse_references(&message(&lines)).expect("references");
        assert_eq!(references[0].target.as_deref(), Some("refs/heads/main"));
        assert_eq!((references[0].commit(), references[1].commit()), (&*one, &*two));
        assert_eq!(references.len(), 2);
        assert!(parse_references(&message(&["short refs/heads/main"])).is_err());
    }

    #[test]
    fn malformed_packets_and_errors_of_the_server_are_reported() {
        for wrong in [&b"00"[..], b"zzzz", b"0003", b"0010short", b"ffff"] {
            assert!(parse_references(wrong).is_err(), "{wrong:?}");
        }
        let refused = parse_pack(&message(&["ERR upload-pack: not our ref"])).expect_err("an error");
        assert!(refused.contains("not our ref"), "{refused}");
        assert!(parse_pack(&message(&["acknowledgments"])).is_err(), "no pack");
        let mut broken = message(&["packfile"]);
        broken.truncate(broken.len() - 4);
        broken.extend_from_slice(b"0009\x03boom0000");
        broken.truncate(broken.len());
        assert!(parse_pack(&broken).expect_err("an error").contains("boom"));
    }
}
