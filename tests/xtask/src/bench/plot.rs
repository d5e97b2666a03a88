//! Plots as SVG: bars, and lines.

use std::fmt::Write;

const WIDTH: f64 = 640.0;
const LABELS: f64 = 180.0;
const OURS: &str = "#d9480f";
const OTHERS: [&str; 6] = ["#868e96", "#1971c2", "#2f9e44", "#9c36b5", "#adb5bd", "#e8590c"];

fn open(out: &mut String, height: f64, title: &str) {
    let _ = writeln!(
        out,
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="system-ui, sans-serif" font-size="13"><rect width="{WIDTH}" height="{height}" fill="#fff"/><text x="12" y="24" font-size="15" font-weight="600" fill="#212529">{title}</text>"##
    );
}

fn colour(subject: &str, nth: usize) -> &'static str {
    match subject {
        "ostler" => OURS,
        _ => OTHERS[nth % OTHERS.len()],
    }
}

/// Short, whatever its size.
fn number(v: f64) -> String {
    match v {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

/// One bar per subject.
pub fn bars(title: &str, bars: &[(&str, f64)]) -> String {
    let most = bars.iter().map(|(_, v)| *v).fold(f64::MIN_POSITIVE, f64::max);
    let mut out = String::new();
    open(&mut out, 44.0 + 28.0 * bars.len() as f64, title);
    for (i, (subject, value)) in bars.iter().enumerate() {
        let (y, width) = (
            40.0 + 28.0 * i as f64,
            (value / most * (WIDTH - LABELS - 90.0)).max(1.0),
        );
        let fill = if *subject == "ostler" { OURS } else { OTHERS[0] };
        let _ = writeln!(
            out,
            r##"<text x="{:.0}" y="{:.0}" text-anchor="end" fill="#212529">{subject}</text><rect x="{LABELS}" y="{y:.0}" width="{width:.1}" height="20" rx="2" fill="{fill}"/><text x="{:.1}" y="{:.0}" fill="#495057">{}</text>"##,
            LABELS - 8.0,
            y + 15.0,
            LABELS + width + 6.0,
            y + 15.0,
            number(*value)
        );
    }
    out.push_str("</svg>\n");
    out
}

/// One line per subject, through its points.
pub fn lines(title: &str, lines: &[(&str, Vec<(f64, f64)>)]) -> String {
    const HEIGHT: f64 = 320.0;
    let (left, right, top, bottom) = (60.0, WIDTH - 190.0, 48.0, HEIGHT - 40.0);
    let points = || lines.iter().flat_map(|(_, points)| points);
    let most_x = points().map(|p| p.0).fold(f64::MIN_POSITIVE, f64::max);
    let most_y = points().map(|p| p.1).fold(f64::MIN_POSITIVE, f64::max);
    let x = |v: f64| left + v / most_x * (right - left);
    let y = |v: f64| bottom - v / most_y * (bottom - top);
    let mut out = String::new();
    open(&mut out, HEIGHT, title);
    for part in [0.0, 0.25, 0.5, 0.75, 1.0] {
        let at = y(most_y * part);
        let _ = writeln!(
            out,
            r##"<path d="M{left} {at:.1}H{right}" stroke="#dee2e6"/><text x="{:.0}" y="{:.1}" text-anchor="end" fill="#495057">{}</text>"##,
            left - 6.0,
            at + 4.0,
            number(most_y * part)
        );
    }
    let mut ticks: Vec<f64> = points().map(|p| p.0).collect();
    ticks.sort_by(f64::total_cmp);
    ticks.dedup();
    for tick in ticks {
        let _ = writeln!(
            out,
            r##"<text x="{:.1}" y="{:.0}" text-anchor="middle" fill="#495057">{tick:.0}</text>"##,
            x(tick),
            bottom + 20.0
        );
    }
    for (i, (subject, points)) in lines.iter().enumerate() {
        let stroke = colour(subject, i);
        let path: Vec<_> = points
            .iter()
            .map(|(px, py)| format!("{:.1},{:.1}", x(*px), y(*py)))
            .collect();
        let _ = writeln!(
            out,
            r##"<polyline points="{}" fill="none" stroke="{stroke}" stroke-width="2.5"/><rect x="{:.0}" y="{}" width="12" height="12" fill="{stroke}"/><text x="{:.0}" y="{}" fill="#212529">{subject}</text>"##,
            path.join(" "),
            right + 16.0,
            top as usize + 24 * i,
            right + 34.0,
            top as usize + 24 * i + 11
        );
    }
    out.push_str("</svg>\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_bar_is_the_largest_value() {
        let svg = bars("t", &[("ostler", 10.0), ("kopf", 5.0)]);
        assert!(
            svg.contains(r#"width="370.0""#) && svg.contains(r#"width="185.0""#),
            "{svg}"
        );
    }

    #[test]
    fn a_line_has_all_its_points() {
        let svg = lines("t", &[("ostler", vec![(10.0, 1.0), (100.0, 2.0)])]);
        assert!(svg.contains(r#"points="99.0,164.0 450.0,48.0""#), "{svg}");
    }
}
