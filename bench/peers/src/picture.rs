//! The report as an SVG that stands alone: no scripts, no fonts from elsewhere, a light ground of its own.

use crate::report::{Line, Spread, short};
use std::fmt::{Arguments, Write};

const WIDTH: f64 = 1100.0;
const LEFT: f64 = 24.0;
/// Where bars may be.
const BARS: (f64, f64) = (272.0, 592.0);
/// The right ends of the ratios with 1, 8 and 32 clients.
const RATIOS: [(usize, f64); 3] = [(1, 642.0), (8, 690.0), (32, 738.0)];
const NOT_PROMISED: f64 = 760.0;
/// What the bars are drawn for.
const CLIENTS: usize = 8;

const ROW: f64 = 19.0;
const PANEL_WIDTH: f64 = 340.0;
const PANEL_HEIGHT: f64 = 168.0;
const PANELS_IN_A_ROW: usize = 3;

/// As many times as fast as the floor.
const SCALE: (f64, f64) = (0.01, 200.0);
const TICKS: [f64; 5] = [0.01, 0.1, 1.0, 10.0, 100.0];

const INK: &str = "#1f2937";
const FAINT: &str = "#6b7280";
const GRID: &str = "#e5e7eb";
const OURS: &str = "#2563eb";
const THEIRS: &str = "#9ca3af";
const FLOOR: &str = "#b45309";

const COMPARED: [(&str, &str); 8] = [
    ("acquire", "Acquire and release"),
    ("heartbeat", "Heartbeats of 1,000 live leases a client"),
    ("heartbeat_async", "Heartbeats with synchronous_commit = off"),
    ("refused", "An acquire that is refused"),
    ("handover", "Hand-over to the first of 8 waiters"),
    ("write", "A fenced row, in autocommit"),
    ("write_in_transaction", "A fenced row, in a transaction"),
    ("bulk", "1,000 fenced rows in a statement"),
];

const GROWING: [(&str, &str); 6] = [
    ("leases_acquire", "Acquire and release: leases in the table"),
    ("leases_extend", "Heartbeat: leases in the table"),
    ("leases_refused", "Refused acquire: leases in the table"),
    ("waiters", "Hand-over: waiters for one name"),
    ("sessions", "Fenced row: sessions under one lease"),
    ("day", "8,640 heartbeats on one row: tenths of the day"),
];

pub fn draw(lines: &[Line]) -> String {
    let mut svg = Svg::default();
    svg.text(LEFT, 34.0, TITLE, "What a lease costs, and what the others cost");
    let rounds = lines.iter().find(|line| !is_floor(line)).map_or(0, |line| line.rounds);
    svg.text(
        LEFT,
        54.0,
        SMALL,
        &format!(
            "How many times as fast as the floor, which is the line at 1: to the right is faster. Medians of {rounds} rounds in turn, \
             bars for {CLIENTS} clients; the thin line is the middle half of the rounds."
        ),
    );
    let mut top = 70.0;
    for (measure, title) in COMPARED {
        let lines: Vec<&Line> = lines.iter().filter(|line| line.measure == measure).collect();
        if !lines.is_empty() {
            top = draw_comparison(&mut svg, top, title, &lines);
        }
    }
    top += 12.0;
    svg.text(LEFT, top + 20.0, TITLE, "How it grows");
    let about = "How many times as fast as the floor, which has grown alike: the bare UPDATEs, a function that does nothing, the INSERT without a fence. \
                 Growth shows as bars that get shorter.";
    svg.text(LEFT, top + 38.0, SMALL, about);
    top += 52.0;
    let mut panels = 0;
    for (measure, title) in GROWING {
        let is_ours = |line: &&Line| line.measure == measure && is_ours(line);
        let lines: Vec<&Line> = lines.iter().filter(is_ours).collect();
        if !lines.is_empty() {
            let x = LEFT + (panels % PANELS_IN_A_ROW) as f64 * (PANEL_WIDTH + 16.0);
            let y = top + (panels / PANELS_IN_A_ROW) as f64 * PANEL_HEIGHT;
            draw_growth(&mut svg, (x, y), title, &lines);
            panels += 1;
        }
    }
    svg.finish(top + panels.div_ceil(PANELS_IN_A_ROW) as f64 * PANEL_HEIGHT + 8.0)
}

fn is_floor(line: &Line) -> bool {
    line.system == line.beside
}

fn is_ours(line: &Line) -> bool {
    line.not_promised.is_empty() && line.unit != "pages" && line.unit != "pages of the index"
}

/// A row for each system, and where it ends.
fn draw_comparison(svg: &mut Svg, top: f64, title: &str, lines: &[&Line]) -> f64 {
    let mut systems: Vec<&str> = Vec::new();
    for line in lines.iter().filter(|line| !is_floor(line)) {
        if !systems.contains(&line.system.as_str()) {
            systems.push(&line.system);
        }
    }
    let beside = lines.first().map(|line| line.beside.as_str()).unwrap_or_default();
    let (head, first) = (top + 40.0, top + 58.0);
    let bottom = first + ROW * systems.len() as f64 - 8.0;
    svg.text(LEFT, top + 22.0, BOLD, title);
    svg.text(LEFT, head, SMALL, &format!("1 = {beside}"));
    for tick in TICKS {
        let x = x_of(tick);
        let (color, width) = if tick == 1.0 { (FLOOR, 1.5) } else { (GRID, 1.0) };
        svg.line((x, head + 6.0), (x, bottom), color, width);
        svg.text(x, head, SMALL.centered(), &tick.to_string());
    }
    for (clients, x) in RATIOS {
        if lines.iter().any(|line| line.clients == clients) {
            let clients = if clients == 1 { "1 client".into() } else { clients.to_string() };
            svg.text(x, head, SMALL.to_the_left(), &clients);
        }
    }
    svg.text(NOT_PROMISED, head, SMALL, "what it is not set up to promise");
    for (row, system) in systems.iter().enumerate() {
        let y = first + ROW * row as f64;
        let of_system = |line: &&&Line| line.system == *system;
        let all: Vec<&&Line> = lines.iter().filter(of_system).collect();
        let Some(shown) = all.iter().find(|line| line.clients == CLIENTS).or(all.first()) else {
            continue;
        };
        let color = if is_ours(shown) { OURS } else { THEIRS };
        let pen = if is_ours(shown) { BODY.in_color(OURS) } else { BODY };
        svg.text(LEFT, y + 4.0, pen, system);
        svg.bar(shown.ratio, y, color);
        for line in &all {
            let place = RATIOS.iter().find(|(clients, _)| *clients == line.clients);
            let x = place.map_or(RATIOS[1].1, |(_, x)| *x);
            svg.text(x, y + 4.0, pen.to_the_left(), &short(line.ratio.median));
        }
        svg.text(NOT_PROMISED, y + 4.0, SMALL, &shown.not_promised);
    }
    bottom + 6.0
}

/// On a scale where twice as fast is as long as half as fast.
fn x_of(ratio: f64) -> f64 {
    let (from, to) = (SCALE.0.ln(), SCALE.1.ln());
    let share = (ratio.clamp(SCALE.0, SCALE.1).ln() - from) / (to - from);
    BARS.0 + (BARS.1 - BARS.0) * share
}

/// A bar for each size.
fn draw_growth(svg: &mut Svg, (left, top): (f64, f64), title: &str, lines: &[&Line]) {
    let (ceiling, ground) = (top + 36.0, top + PANEL_HEIGHT - 30.0);
    let most = lines.iter().map(|line| line.ratio.upper).fold(1.2, f64::max);
    let y_of = |ratio: f64| ground - (ground - ceiling) * ratio / most;
    svg.text(left, top + 14.0, BOLD, title);
    let step = PANEL_WIDTH / lines.len() as f64;
    for (place, line) in lines.iter().enumerate() {
        let x = left + step * (place as f64 + 0.5);
        let width = (step * 0.6).min(36.0);
        let Spread { median, lower, upper } = line.ratio;
        svg.push(format_args!(
            r##"<rect x="{:.1}" y="{:.1}" width="{width:.1}" height="{:.1}" fill="{OURS}" fill-opacity="0.75"/>"##,
            x - width / 2.0,
            y_of(median),
            ground - y_of(median),
        ));
        svg.line((x, y_of(lower)), (x, y_of(upper)), INK, 1.0);
        svg.text(x, y_of(upper.max(median)) - 4.0, SMALL.centered(), &short(median));
        let size =
            if line.size.is_empty() { line.clients.to_string() } else { grouped(&line.size) };
        svg.text(x, ground + 14.0, SMALL.centered(), &size);
    }
    svg.line((left, y_of(1.0)), (left + PANEL_WIDTH, y_of(1.0)), FLOOR, 1.0);
    svg.line((left, ground), (left + PANEL_WIDTH, ground), GRID, 1.0);
}

/// With commas.
fn grouped(number: &str) -> String {
    let digits: Vec<char> = number.chars().collect();
    let groups: Vec<String> = digits.rchunks(3).rev().map(|group| group.iter().collect()).collect();
    groups.join(",")
}

/// How a text looks.
#[derive(Clone, Copy)]
struct Pen {
    color: &'static str,
    size: f64,
    anchor: &'static str,
    more: &'static str,
}

const BODY: Pen = Pen { color: INK, size: 12.0, anchor: "start", more: "" };
const BOLD: Pen = Pen { size: 13.0, more: "font-weight=\"bold\"", ..BODY };
const TITLE: Pen = Pen { size: 17.0, ..BOLD };
const SMALL: Pen = Pen { color: FAINT, size: 11.0, ..BODY };

impl Pen {
    fn in_color(self, color: &'static str) -> Self {
        Self { color, ..self }
    }

    fn centered(self) -> Self {
        Self { anchor: "middle", ..self }
    }

    fn to_the_left(self) -> Self {
        Self { anchor: "end", ..self }
    }
}

#[derive(Default)]
struct Svg(String);

impl Svg {
    fn push(&mut self, element: Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.0, "{element}");
    }

    /// From the floor to the median, and the spread over it.
    fn bar(&mut self, ratio: Spread, y: f64, color: &str) {
        let (from, to) = (x_of(ratio.median.min(1.0)), x_of(ratio.median.max(1.0)));
        self.push(format_args!(
            r#"<rect x="{from:.1}" y="{:.1}" width="{:.1}" height="11" fill="{color}"/>"#,
            y - 5.5,
            (to - from).max(1.0),
        ));
        self.line((x_of(ratio.lower), y), (x_of(ratio.upper), y), INK, 1.2);
    }

    fn line(&mut self, (x1, y1): (f64, f64), (x2, y2): (f64, f64), stroke: &str, width: f64) {
        self.push(format_args!(
            r#"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" stroke="{stroke}" stroke-width="{width}"/>"#
        ));
    }

    fn text(&mut self, x: f64, y: f64, pen: Pen, text: &str) {
        let Pen { color, size, anchor, more } = pen;
        let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        self.push(format_args!(
            r#"<text x="{x:.1}" y="{y:.1}" font-size="{size}" text-anchor="{anchor}" fill="{color}" {more}>{text}</text>"#
        ));
    }

    fn finish(self, height: f64) -> String {
        let body = self.0;
        format!(
            r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" font-family="Helvetica, Arial, 'Liberation Sans', sans-serif">
<title>lock_ext beside bare UPDATEs, PL/pgSQL by hand, ShedLock, advisory locks, Redis, etcd and ZooKeeper, and how it grows</title>
<rect width="{WIDTH}" height="{height}" rx="8" fill="#ffffff"/>
{body}</svg>
"##
        )
    }
}
