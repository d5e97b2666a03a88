//! Recordings of commands in a terminal, as pictures for the documentation.

use std::{
    fmt::Write,
    io::{BufRead, BufReader, Read},
    process::{Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

/// Height of a line, and width of a character, in the units of the picture.
const LINE_HEIGHT: usize = 18;
const CHARACTER_WIDTH: f64 = 8.0;
/// Maximum number of characters in a line of the picture.
const MAX_COLUMNS: usize = 124;
/// Time that the whole picture stands before it begins again.
const PAUSE: Duration = Duration::from_secs(6);

/// Commands with their output, each line with its time.
#[derive(Default)]
pub struct TerminalRecording {
    lines: Vec<(Duration, String)>,
    /// Time of all commands so far. Not that between them.
    elapsed: Duration,
}

impl TerminalRecording {
    /// Runs a command that has to succeed, and records it as a person would have typed it. Returns all that it prints.
    pub fn run(&mut self, typed: &str, command: &mut Command) -> String {
        let began = Instant::now();
        self.lines.push((self.elapsed, format!("$ {typed}")));
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the command starts");
        let (sender, lines) = mpsc::channel();
        let read = |pipe: Box<dyn Read + Send>| {
            let sender = sender.clone();
            thread::spawn(move || {
                let lines = BufReader::new(pipe).lines().map_while(Result::ok);
                lines.for_each(|line| drop(sender.send((began.elapsed(), line))));
            })
        };
        let readers = [
            read(Box::new(child.stdout.take().expect("piped"))),
            read(Box::new(child.stderr.take().expect("piped"))),
        ];
        drop(sender);
        let before = self.elapsed;
        let mut text = String::new();
        for (at, line) in lines {
            text.push_str(&line);
            text.push('\n');
            self.lines.push((before + at, line));
        }
        for reader in readers {
            reader.join().expect("it reads");
        }
        let status = child.wait().expect("it ends");
        assert!(status.success(), "{typed}: {text}");
        self.elapsed = before + began.elapsed();
        text
    }

    /// Adds a command that something else has run, with what it has printed, and the time that it took.
    pub fn add_lines(&mut self, typed: &str, printed: &[&str], took: Duration) {
        self.lines.push((self.elapsed, format!("$ {typed}")));
        self.elapsed += took;
        let printed = printed.iter().map(|line| (self.elapsed, (*line).to_owned()));
        self.lines.extend(printed);
    }

    /// Draws the recording as an animated picture (SVG). Words are replaced by others, such as addresses by those of the documentation.
    pub fn to_svg(&self, replaced: &[(&str, &str)]) -> String {
        let duration = (self.elapsed + PAUSE).as_secs_f64();
        let width = MAX_COLUMNS as f64 * CHARACTER_WIDTH + 24.0;
        let height = self.lines.len() * LINE_HEIGHT + 24;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" role=\"img\">\n\
             <title>The commands and what they print, in the time that they take</title>\n\
             <style>\ntext {{ font: 13px 'DejaVu Sans Mono', Consolas, monospace; fill: #dfe4e9; white-space: pre; }}\n\
             .typed {{ fill: #6ccb8b; }}\n.line {{ animation: {duration:.2}s step-end infinite; }}\n"
        );
        for (index, (at, _)) in self.lines.iter().enumerate() {
            let percent = 100.0 * at.as_secs_f64() / duration;
            let _ = writeln!(
                svg,
                "@keyframes l{index} {{ from {{ opacity: 0 }} {percent:.2}% {{ opacity: 1 }} to {{ opacity: 1 }} }}"
            );
        }
        let _ = writeln!(
            svg,
            "</style>\n<rect width=\"100%\" height=\"100%\" rx=\"6\" fill=\"#14181c\"/>"
        );
        for (index, (_, line)) in self.lines.iter().enumerate() {
            let mut text = line.clone();
            for (word, other) in replaced {
                text = text.replace(word, other);
            }
            if text.chars().count() > MAX_COLUMNS {
                text = text.chars().take(MAX_COLUMNS - 1).chain(['…']).collect();
            }
            let class = if line.starts_with("$ ") {
                "line typed"
            } else {
                "line"
            };
            let y = 24 + index * LINE_HEIGHT;
            let text = text.replace('&', "&amp;").replace('<', "&lt;");
            let _ = writeln!(
                svg,
                "<text class=\"{class}\" style=\"animation-name: l{index}\" x=\"12\" y=\"{y}\">{text}</text>"
            );
        }
        svg.push_str("</svg>\n");
        svg
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn picture_has_each_line_at_its_time_and_no_markup_of_commands() {
        let mut recording = TerminalRecording::default();
        let mut command = Command::new("sh");
        let text = recording.run(
            "greet",
            command.args(["-c", "echo 'a < b & 10.0.0.1'; echo error >&2"]),
        );
        assert!(
            text.contains("a < b & 10.0.0.1\n") && text.contains("error\n"),
            "{text}"
        );
        recording.add_lines("wait", &["waited"], Duration::from_secs(1));
        let svg = recording.to_svg(&[("10.0.0.1", "example.org")]);
        assert!(
            svg.contains("$ greet") && svg.contains("a &lt; b &amp; example.org"),
            "{svg}"
        );
        assert_eq!(svg.matches("@keyframes").count(), 5);
    }
}
