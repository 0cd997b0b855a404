//! Charts as SVG, without scripts. Coordinates are whole numbers; colours follow the reader's preference
//! for light or dark.

use std::fmt::Write as _;

/// How many series have a colour of their own; the others are grey.
pub(super) const COLOURS: usize = 6;

const WIDTH: u64 = 760;
const HEIGHT: u64 = 300;
const LEFT: u64 = 64;
const RIGHT: u64 = 16;
const TOP: u64 = 14;
const BOTTOM: u64 = 34;
/// Height of one bar with the space below it.
const BAR: u64 = 24;
const BAR_LABEL: u64 = 190;

/// Colours and text of charts; in a report once for all, in a file of its own with the chart.
pub(super) const STYLE: &str = "\
.chart{--ink:#1d2530;--soft:#5b6675;--grid:#e2e6eb;--rest:#b4bcc6;--c0:#0b62c4;--c1:#c4500b;--c2:#0b8457;\
--c3:#9a3bb5;--c4:#a87a00;--c5:#c2185b;font:12px system-ui,sans-serif}\
.chart text{fill:var(--soft)}.chart .name{fill:var(--ink)}\
.chart .grid{stroke:var(--grid)}.chart .line{fill:none;stroke-width:2;stroke-linejoin:round}\
.chart .rest{stroke:var(--rest);stroke-width:1}.chart .bound{stroke:var(--ink);stroke-dasharray:4 4}\
@media(prefers-color-scheme:dark){.chart{--ink:#e8ecf1;--soft:#9aa5b3;--grid:#2c343f;--rest:#56616e;\
--c0:#6db1ff;--c1:#ff9a5c;--c2:#4fd1a0;--c3:#d69bea;--c4:#e6c04a;--c5:#ff7fae}}";

/// One series of a chart.
pub(super) struct Series {
    pub(super) name: String,
    /// Time in seconds and value, in the order of time.
    pub(super) points: Vec<(u64, u64)>,
}

/// Values over time, a line a series. The first series have colours, and are listed.
pub(super) struct LineChart {
    pub(super) title: String,
    pub(super) series: Vec<Series>,
}

/// One value a row; smaller is better.
pub(super) struct BarChart {
    pub(super) title: String,
    /// Name, value, and the value as text.
    pub(super) bars: Vec<(String, u64, String)>,
    /// No value can be below this.
    pub(super) bound: Option<(u64, String)>,
}

/// Text between tags or in an attribute.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            other => escaped.push(other),
        }
    }
    escaped
}

/// A file of its own from a chart in a report.
pub(super) fn standalone(svg: &str) -> String {
    let open = svg.find('>').map_or(0, |at| at + 1);
    let (tag, rest) = svg.split_at(open);
    let tag = tag.replacen("<svg", "<svg xmlns=\"http://www.w3.org/2000/svg\"", 1);
    format!(
        "{tag}<style>{STYLE}.paper{{fill:#fff}}@media(prefers-color-scheme:dark){{.paper{{fill:#14191f}}}}\
         </style><rect class=\"paper\" width=\"100%\" height=\"100%\"/>{rest}\n"
    )
}

impl LineChart {
    pub(super) fn svg(&self) -> String {
        let listed = self.series.len().min(COLOURS);
        let has_others = self.series.len() > listed;
        let columns = 3;
        let rows = (listed + usize::from(has_others)).div_ceil(columns) as u64;
        let height = HEIGHT + rows * 20;
        let points = || self.series.iter().flat_map(|series| &series.points);
        let start = points().map(|(time, _)| *time).min().unwrap_or(0);
        let span = points().map(|(time, _)| *time - start).max().unwrap_or(0).max(1);
        let top_value = points().map(|(_, value)| *value).max().unwrap_or(0);
        let step = nice_step(top_value, 5);
        let top = top_value.div_ceil(step).max(1) * step;
        let x = |time: u64| LEFT + (time - start) * (WIDTH - LEFT - RIGHT) / span;
        let y = |value: u64| HEIGHT - BOTTOM - value * (HEIGHT - BOTTOM - TOP) / top;
        let mut svg = open_tag(&self.title, height);
        for tick in (0..=top / step).map(|number| number * step) {
            let at = y(tick);
            let _ = write!(
                svg,
                "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{at}\" y2=\"{at}\"/>\
                 <text x=\"{}\" y=\"{}\" text-anchor=\"end\">{tick}</text>",
                WIDTH - RIGHT,
                LEFT - 8,
                at + 4
            );
        }
        write_time_axis(&mut svg, span, |passed| x(start + passed));
        // Colours last, so that grey lines do not cover them.
        for (number, series) in self.series.iter().enumerate().rev() {
            let line: Vec<String> = series
                .points
                .iter()
                .map(|(time, value)| format!("{},{}", x(*time), y(*value)))
                .collect();
            let look = look(number);
            let name = escape(&series.name);
            let _ = write!(
                svg,
                "<polyline {look} points=\"{}\"><title>{name}</title></polyline>",
                line.join(" ")
            );
        }
        for number in 0..listed + usize::from(has_others) {
            let left = LEFT + (number % columns) as u64 * 230;
            let row = HEIGHT + (number / columns) as u64 * 20 + 8;
            let name = match self.series.get(number) {
                Some(series) if number < listed => escape(&series.name),
                _ => format!("{} others", self.series.len() - listed),
            };
            let _ = write!(
                svg,
                "<line {} x1=\"{left}\" x2=\"{}\" y1=\"{row}\" y2=\"{row}\"/>\
                 <text class=\"name\" x=\"{}\" y=\"{}\">{name}</text>",
                look(number),
                left + 22,
                left + 30,
                row + 4
            );
        }
        svg + "</svg>"
    }
}

impl BarChart {
    pub(super) fn svg(&self) -> String {
        let bars = self.bars.len() as u64;
        let below = if self.bound.is_some() { 24 } else { 4 };
        let height = bars * BAR + TOP + below;
        let width = WIDTH - BAR_LABEL - 90;
        let bound = self.bound.as_ref().map_or(0, |(value, _)| *value);
        let most =
            self.bars.iter().map(|(_, value, _)| *value).max().unwrap_or(0).max(bound).max(1);
        let length = |value: u64| value * width / most;
        let mut svg = open_tag(&self.title, height);
        for (number, (name, value, text)) in self.bars.iter().enumerate() {
            let top = TOP + number as u64 * BAR;
            let colour = if number < COLOURS {
                format!("var(--c{number})")
            } else {
                "var(--rest)".to_owned()
            };
            let _ = write!(
                svg,
                "<text class=\"name\" x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\
                 <rect x=\"{BAR_LABEL}\" y=\"{top}\" width=\"{}\" height=\"{}\" rx=\"2\" style=\"fill:{colour}\"/>\
                 <text x=\"{}\" y=\"{}\">{}</text>",
                BAR_LABEL - 10,
                top + 13,
                escape(name),
                length(*value).max(1),
                BAR - 7,
                BAR_LABEL + length(*value) + 8,
                top + 13,
                escape(text)
            );
        }
        if let Some((value, text)) = &self.bound {
            let at = BAR_LABEL + length(*value);
            let _ = write!(
                svg,
                "<line class=\"bound\" x1=\"{at}\" x2=\"{at}\" y1=\"{}\" y2=\"{}\"/>\
                 <text x=\"{at}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                TOP - 8,
                TOP + bars * BAR,
                height - 8,
                escape(text)
            );
        }
        svg + "</svg>"
    }
}

fn open_tag(title: &str, height: u64) -> String {
    let title = escape(title);
    format!(
        "<svg class=\"chart\" role=\"img\" aria-label=\"{title}\" viewBox=\"0 0 {WIDTH} {height}\">\
         <title>{title}</title>"
    )
}

fn look(number: usize) -> String {
    if number < COLOURS {
        format!("class=\"line\" style=\"stroke:var(--c{number})\"")
    } else {
        "class=\"line rest\"".to_owned()
    }
}

fn write_time_axis(svg: &mut String, span: u64, x: impl Fn(u64) -> u64) {
    let (unit_s, unit) = match span {
        345_600.. => (86_400, "days"),
        14_400.. => (3600, "hours"),
        600.. => (60, "minutes"),
        _ => (1, "seconds"),
    };
    let units = span / unit_s;
    let step = nice_step(units, 8);
    for tick in (0..=units / step).map(|number| number * step) {
        let at = x(tick * unit_s);
        let text = if tick == 0 { unit.to_owned() } else { tick.to_string() };
        let _ = write!(
            svg,
            "<text x=\"{at}\" y=\"{}\" text-anchor=\"middle\">{text}</text>",
            HEIGHT - BOTTOM + 18
        );
    }
}

/// A step of 1, 2 or 5 times a power of ten, with at most so many of them up to a value.
fn nice_step(value: u64, most: u64) -> u64 {
    let mut power = 1;
    loop {
        for step in [power, 2 * power, 5 * power] {
            if value / step <= most {
                return step;
            }
        }
        power *= 10;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_of_an_axis_are_round_numbers() {
        let cases = [(0, 1), (5, 1), (6, 2), (29, 5), (59, 10), (723, 200), (92_000, 20_000)];
        for (value, step) in cases {
            assert_eq!(nice_step(value, 5), step, "{value}");
        }
    }

    #[test]
    fn names_from_files_cannot_leave_their_place_in_a_chart() {
        let series = Series { name: "<script>\"&".to_owned(), points: vec![(0, 1), (9, 2)] };
        let chart = LineChart { title: "a<b".to_owned(), series: vec![series] };
        let svg = standalone(&chart.svg());
        assert!(!svg.contains("<script>") && svg.contains("&lt;script&gt;&quot;&amp;"), "{svg}");
        assert!(svg.starts_with("<svg xmlns=") && svg.contains("aria-label=\"a&lt;b\""), "{svg}");
    }
}
