//! What a bench has measured.

use std::fmt::Write;

use serde_json::{Value, json};

/// A number with its name and unit.
struct Figure {
    name: String,
    value: f64,
    unit: &'static str,
}

/// The figures of a bench, in their order.
#[derive(Default)]
pub struct Figures(Vec<Figure>);

impl Figures {
    /// Adds a figure.
    pub fn add(&mut self, name: impl Into<String>, value: f64, unit: &'static str) {
        let name = name.into();
        self.0.push(Figure { name, value, unit });
    }

    /// Returns their number.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Formats them as a table.
    pub fn markdown_table(&self) -> String {
        let mut table = "| figure | measured |\n|---|--:|\n".to_owned();
        for Figure { name, value, unit } in &self.0 {
            let unit = match *unit {
                "" | "/h" | "/s" => (*unit).to_owned(),
                unit => format!(" {unit}"),
            };
            // Writing to a String does not fail.
            let _ = writeln!(table, "| {name} | {value:.0}{unit} |");
        }
        table
    }

    /// Formats them as JSON.
    pub fn to_json(&self) -> Value {
        let figures = self.0.iter();
        figures
            .map(|Figure { name, value, unit }| json!({ "name": name, "value": value, "unit": unit }))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_listed_in_order_with_their_units() {
        let mut figures = Figures::default();
        figures.add("events handled", 370.6, "/s");
        figures.add("delay", 41.0, "ms");
        figures.add("objects", 15.0, "");
        assert_eq!(
            figures.markdown_table(),
            "| figure | measured |\n|---|--:|\n| events handled | 371/s |\n| delay | 41 ms |\n| objects | 15 |\n"
        );
        assert_eq!(
            figures.to_json()[1],
            json!({ "name": "delay", "value": 41.0, "unit": "ms" })
        );
        assert_eq!(figures.len(), 3);
    }
}
