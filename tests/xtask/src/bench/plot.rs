//! Bar and line charts as SVG.

use std::fmt::Write;

const CHART_WIDTH: f64 = 640.0;
const LABEL_WIDTH: f64 = 180.0;
const OSTLER_COLOR: &str = "#d9480f";
const OTHER_COLORS: [&str; 6] = ["#868e96", "#1971c2", "#2f9e44", "#9c36b5", "#adb5bd", "#e8590c"];

fn open_svg(out: &mut String, height: f64, title: &str) {
    let _ = writeln!(
        out,
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {CHART_WIDTH} {height}" font-family="system-ui, sans-serif" font-size="13"><rect width="{CHART_WIDTH}" height="{height}" fill="#fff"/><text x="12" y="24" font-size="15" font-weight="600" fill="#212529">{title}</text>"##
    );
}

fn line_color(subject: &str, nth: usize) -> &'static str {
    match subject {
        "ostler" => OSTLER_COLOR,
        _ => OTHER_COLORS[nth % OTHER_COLORS.len()],
    }
}

/// Formats a number with three significant digits.
fn format_number(v: f64) -> String {
    match v {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

/// Renders one bar per subject.
pub fn bar_chart(title: &str, bars: &[(&str, f64)]) -> String {
    let most = bars.iter().map(|(_, v)| *v).fold(f64::MIN_POSITIVE, f64::max);
    let mut out = String::new();
    open_svg(&mut out, 44.0 + 28.0 * bars.len() as f64, title);
    for (i, (subject, value)) in bars.iter().enumerate() {
        let (y, width) = (
            40.0 + 28.0 * i as f64,
            (value / most * (CHART_WIDTH - LABEL_WIDTH - 90.0)).max(1.0),
        );
        let fill = if *subject == "ostler" {
            OSTLER_COLOR
        } else {
            OTHER_COLORS[0]
        };
        let _ = writeln!(
            out,
            r##"<text x="{:.0}" y="{:.0}" text-anchor="end" fill="#212529">{subject}</text><rect x="{LABEL_WIDTH}" y="{y:.0}" width="{width:.1}" height="20" rx="2" fill="{fill}"/><text x="{:.1}" y="{:.0}" fill="#495057">{}</text>"##,
            LABEL_WIDTH - 8.0,
            y + 15.0,
            LABEL_WIDTH + width + 6.0,
            y + 15.0,
            format_number(*value)
        );
    }
    out.push_str("</svg>\n");
    out
}

/// Renders one line per subject.
pub fn line_chart(title: &str, lines: &[(&str, Vec<(f64, f64)>)]) -> String {
    const CHART_HEIGHT: f64 = 320.0;
    let (left, right, top, bottom) = (60.0, CHART_WIDTH - 190.0, 48.0, CHART_HEIGHT - 40.0);
    let points = || lines.iter().flat_map(|(_, points)| points);
    let most_x = points().map(|p| p.0).fold(f64::MIN_POSITIVE, f64::max);
    let most_y = points().map(|p| p.1).fold(f64::MIN_POSITIVE, f64::max);
    let x = |v: f64| left + v / most_x * (right - left);
    let y = |v: f64| bottom - v / most_y * (bottom - top);
    let mut out = String::new();
    open_svg(&mut out, CHART_HEIGHT, title);
    for part in [0.0, 0.25, 0.5, 0.75, 1.0] {
        let at = y(most_y * part);
        let _ = writeln!(
            out,
            r##"<path d="M{left} {at:.1}H{right}" stroke="#dee2e6"/><text x="{:.0}" y="{:.1}" text-anchor="end" fill="#495057">{}</text>"##,
            left - 6.0,
            at + 4.0,
            format_number(most_y * part)
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
        let stroke = line_color(subject, i);
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
    fn bar_width_is_proportional_to_the_value() {
        let svg = bar_chart("t", &[("ostler", 10.0), ("kopf", 5.0)]);
        assert!(
            svg.contains(r#"width="370.0""#) && svg.contains(r#"width="185.0""#),
            "{svg}"
        );
    }

    #[test]
    fn line_has_all_points_of_its_subject() {
        let svg = line_chart("t", &[("ostler", vec![(10.0, 1.0), (100.0, 2.0)])]);
        assert!(svg.contains(r#"points="99.0,164.0 450.0,48.0""#), "{svg}");
    }
}
