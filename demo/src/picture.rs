//! What happened, as an SVG that stands alone: no scripts, no fonts from elsewhere, a light ground of its own.

use crate::director::{Moment, Run, What};
use crate::event::Event;
use crate::job::{CHUNK, TIME_TO_LIVE};
use crate::timeline::{Line, Teller, Tone, number, verdict};
use std::fmt::{Arguments, Write};

const WIDTH: f64 = 1000.0;
const LEFT: f64 = 96.0;
const RIGHT: f64 = 24.0;

/// Heights, from the top of a panel: its title, the lease, two workers, the clock; then its list of turns.
const TITLE_AT: f64 = 32.0;
const LEASE_AT: f64 = 58.0;
const WORKER_AT: [f64; 2] = [128.0, 208.0];
const CLOCK_AT: f64 = 244.0;
const LIST_AT: f64 = 282.0;
const LIST_STEP: f64 = 19.0;
const BETWEEN_PANELS: f64 = 16.0;
const KEY_HEIGHT: f64 = 34.0;

const INK: &str = "#1f2937";
const FAINT: &str = "#6b7280";
const GRID: &str = "#e5e7eb";
const WORKER: [&str; 2] = ["#2563eb", "#b45309"];
const HARM: &str = "#dc2626";
const SAVED: &str = "#15803d";

pub fn draw(runs: &[&Run]) -> String {
    let ends = runs.iter().filter_map(|run| run.moments.last());
    let longest = ends.map(|last| last.at.as_secs_f64()).fold(0.0, f64::max);
    let scale = Scale(longest + 0.4);

    let mut svg = Svg::default();
    let mut top = 0.0;
    for run in runs {
        let panel = Panel::new(run, scale, top);
        panel.draw(&mut svg);
        top += panel.height();
    }
    draw_key(&mut svg, top + 6.0);
    svg.finish(top + KEY_HEIGHT)
}

/// Seconds on the whole width. Both panels have the same.
#[derive(Clone, Copy)]
struct Scale(f64);

impl Scale {
    fn x(self, seconds: f64) -> f64 {
        LEFT + (WIDTH - LEFT - RIGHT) * seconds / self.0
    }
}

/// One run.
struct Panel<'a> {
    run: &'a Run,
    scale: Scale,
    top: f64,
    turns: Vec<Line>,
}

impl<'a> Panel<'a> {
    fn new(run: &'a Run, scale: Scale, top: f64) -> Self {
        let mut teller = Teller::default();
        let mut turns: Vec<Line> = run.moments.iter().flat_map(|it| teller.tell(it)).collect();
        turns.extend(teller.rest());
        turns.retain(|line| line.tone != Tone::Work);
        // A row of chunks is told when it has ended, but belongs where it began.
        turns.sort_by_key(|line| line.at);
        Self { run, scale, top, turns }
    }

    fn height(&self) -> f64 {
        LIST_AT + LIST_STEP * self.turns.len() as f64 + BETWEEN_PANELS
    }

    fn x(&self, moment: &Moment) -> f64 {
        self.scale.x(moment.at.as_secs_f64())
    }

    fn of_worker(&self, worker: usize) -> Vec<&Moment> {
        self.run.moments.iter().filter(|moment| moment.worker == worker).collect()
    }

    fn draw(&self, svg: &mut Svg) {
        svg.text(24.0, self.top + TITLE_AT, TITLE, &verdict(self.run));
        self.draw_clock(svg);
        self.draw_leases(svg);
        for worker in [1, 2] {
            self.draw_worker(svg, worker);
            self.draw_turns_of(svg, worker);
        }
        self.draw_list(svg);
    }

    fn draw_clock(&self, svg: &mut Svg) {
        let (from, to) = (self.top + LEASE_AT - 10.0, self.top + CLOCK_AT);
        for second in 0..=self.scale.0 as u32 {
            let x = self.scale.x(second.into());
            svg.line((x, from), (x, to), GRID, 1.0);
            svg.text(x, to + 15.0, SMALL.centered(), &format!("{second} s"));
        }
    }

    /// Who holds the lease: from the grant until it is completed, or the last renewal has expired.
    fn draw_leases(&self, svg: &mut Svg) {
        let y = self.top + LEASE_AT;
        svg.text(24.0, y + 13.0, BODY, "lease");
        for moment in &self.run.moments {
            let What::Told(Event::Granted { token }) = &moment.what else {
                continue;
            };
            let mut until = moment.at + TIME_TO_LIVE;
            for later in self.of_worker(moment.worker) {
                match &later.what {
                    What::Told(Event::Extended) => until = later.at + TIME_TO_LIVE,
                    What::Told(Event::Completed) => until = later.at,
                    _ => {}
                }
            }
            let (from, to) = (self.x(moment), self.scale.x(until.as_secs_f64()));
            let color = WORKER[moment.worker - 1];
            svg.bar((from, to), y, 18.0, color, "fill-opacity=\"0.15\"", color);
            let text = format!("token {token}, worker-{}", moment.worker);
            svg.text(from + 8.0, y + 13.0, SMALL.in_color(color), &text);
        }
    }

    /// A worker's lane: where it waited, was frozen, committed a chunk, renewed its lease.
    fn draw_worker(&self, svg: &mut Svg, worker: usize) {
        let y = self.top + WORKER_AT[worker - 1];
        let color = WORKER[worker - 1];
        let moments = self.of_worker(worker);
        svg.text(24.0, y + 4.0, BODY, &format!("worker-{worker}"));
        if let (Some(first), Some(last)) = (moments.first(), moments.last()) {
            svg.line((self.x(first), y), (self.x(last), y), color, 1.5);
        }
        for stretch in &STRETCHES {
            let Some(from) = moments.iter().position(|moment| (stretch.begins)(&moment.what))
            else {
                continue;
            };
            let ends = moments[from..].iter().find(|moment| (stretch.ends)(&moment.what));
            let (from, to) = (self.x(moments[from]), self.x(ends.unwrap_or(&moments[from])));
            svg.bar((from, to), y - 10.0, 20.0, stretch.fill, "", "#cbd5e1");
            svg.text((from + to) / 2.0, y + 4.0, ON_STRETCH, stretch.name);
        }
        for moment in moments {
            match &moment.what {
                What::Told(Event::Paid { last, .. }) if self.is_paid_twice(*last) => {
                    svg.chunk(self.x(moment), y, HARM);
                }
                What::Told(Event::Paid { .. }) => svg.chunk(self.x(moment), y, color),
                What::Told(Event::Extended) => svg.heartbeat(self.x(moment), y + 15.0),
                _ => {}
            }
        }
    }

    fn is_paid_twice(&self, chunk: i32) -> bool {
        let same = |it: &&Moment| matches!(&it.what, What::Told(Event::Paid { last, .. }) if *last == chunk);
        self.run.moments.iter().filter(same).count() > 1
    }

    /// The numbers of the turns, above the lane. Where several come at once they stand side by side.
    fn draw_turns_of(&self, svg: &mut Svg, worker: usize) {
        let y = self.top + WORKER_AT[worker - 1];
        let turns: Vec<(usize, &Line)> =
            (1..).zip(&self.turns).filter(|(_, line)| line.worker == worker).collect();
        let mut places: Vec<f64> = Vec::new();
        for (_, line) in &turns {
            let x = self.scale.x(line.at.as_secs_f64());
            places.push(places.last().map_or(x, |before| x.max(before + BADGE_STEP)));
        }
        let mut limit = WIDTH - BADGE_STEP / 2.0;
        for place in places.iter_mut().rev() {
            *place = place.min(limit);
            limit = *place - BADGE_STEP;
        }
        for ((number, line), place) in turns.into_iter().zip(places) {
            let x = self.scale.x(line.at.as_secs_f64());
            svg.line((x, y - 10.0), (place, y - 30.0), FAINT, 0.8);
            svg.badge(place, y - 30.0, number, color_of(line));
        }
    }

    fn draw_list(&self, svg: &mut Svg) {
        for (index, line) in self.turns.iter().enumerate() {
            let y = self.top + LIST_AT + LIST_STEP * index as f64;
            let color = WORKER[line.worker - 1];
            let text = if line.tone == Tone::Turn { BODY } else { BODY.in_color(color_of(line)) };
            svg.badge(33.0, y - 4.5, index + 1, color_of(line));
            svg.text(54.0, y, BODY.in_color(FAINT), &format!("{:.2} s", line.at.as_secs_f64()));
            svg.text(104.0, y, BODY.in_color(color), &format!("worker-{}", line.worker));
            svg.text(172.0, y, text, &line.text);
        }
    }
}

fn color_of(line: &Line) -> &'static str {
    match line.tone {
        Tone::Harm => HARM,
        Tone::Saved => SAVED,
        Tone::Work | Tone::Turn => WORKER[line.worker - 1],
    }
}

/// A time during which a worker could not, or did not, work.
struct Stretch {
    name: &'static str,
    fill: &'static str,
    begins: fn(&What) -> bool,
    ends: fn(&What) -> bool,
}

const STRETCHES: [Stretch; 3] = [
    Stretch {
        name: "lease_acquire: NULL",
        fill: "#f3f4f6",
        begins: |what| matches!(what, What::Told(Event::Busy)),
        ends: |what| matches!(what, What::Told(Event::Granted { .. })),
    },
    Stretch {
        name: "frozen",
        fill: "url(#frozen)",
        begins: |what| matches!(what, What::Frozen),
        ends: |what| matches!(what, What::Woken { .. }),
    },
    Stretch {
        name: "waits for row locks",
        fill: "#fee2e2",
        begins: |what| matches!(what, What::Blocked),
        ends: |what| matches!(what, What::Told(Event::Paid { .. })),
    },
];

/// What the small signs mean.
fn draw_key(svg: &mut Svg, y: f64) {
    let size = number(CHUNK.into());
    svg.chunk(31.0, y, WORKER[0]);
    svg.text(42.0, y + 4.0, SMALL, &format!("a committed chunk of {size} players"));
    svg.chunk(255.0, y, HARM);
    svg.text(266.0, y + 4.0, SMALL, "a chunk that was paid twice");
    svg.heartbeat(443.0, y);
    svg.text(454.0, y + 4.0, SMALL, "a heartbeat (lease_extend)");
}

/// How a text looks.
#[derive(Clone, Copy)]
struct Pen {
    color: &'static str,
    size: f64,
    anchor: &'static str,
    more: &'static str,
}

const BODY: Pen = Pen { color: INK, size: 13.0, anchor: "start", more: "" };
const TITLE: Pen = Pen { size: 17.0, more: "font-weight=\"bold\"", ..BODY };
const SMALL: Pen = Pen { color: FAINT, size: 11.0, ..BODY };
/// With a light rim, so that it can be read on any pattern.
const ON_STRETCH: Pen = Pen {
    color: INK,
    anchor: "middle",
    more: "stroke=\"#ffffff\" stroke-width=\"3\" paint-order=\"stroke\"",
    ..SMALL
};
const ON_BADGE: Pen =
    Pen { color: "#ffffff", size: 10.5, anchor: "middle", more: "font-weight=\"bold\"" };
const BADGE_STEP: f64 = 20.0;

impl Pen {
    fn in_color(self, color: &'static str) -> Self {
        Self { color, ..self }
    }

    fn centered(self) -> Self {
        Self { anchor: "middle", ..self }
    }
}

#[derive(Default)]
struct Svg(String);

impl Svg {
    fn push(&mut self, element: Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.0, "{element}");
    }

    fn bar(
        &mut self,
        (from, to): (f64, f64),
        y: f64,
        height: f64,
        fill: &str,
        more: &str,
        stroke: &str,
    ) {
        let width = to - from;
        self.push(format_args!(
            r#"<rect x="{from:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" rx="3" fill="{fill}" {more} stroke="{stroke}"/>"#
        ));
    }

    fn chunk(&mut self, x: f64, y: f64, fill: &str) {
        let (x, y) = (x - 3.0, y - 8.0);
        self.push(format_args!(
            r#"<rect x="{x:.1}" y="{y:.1}" width="6" height="16" rx="1" fill="{fill}"/>"#
        ));
    }

    fn heartbeat(&mut self, x: f64, y: f64) {
        self.push(format_args!(r#"<circle cx="{x:.1}" cy="{y:.1}" r="2.5" fill="{FAINT}"/>"#));
    }

    fn badge(&mut self, x: f64, y: f64, number: usize, fill: &str) {
        self.push(format_args!(r#"<circle cx="{x:.1}" cy="{y:.1}" r="8.5" fill="{fill}"/>"#));
        self.text(x, y + 3.8, ON_BADGE, &number.to_string());
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
<title>Two workers, one lease, one of them frozen: with the fence and without</title>
<defs><pattern id="frozen" width="7" height="7" patternTransform="rotate(45)" patternUnits="userSpaceOnUse"><rect width="7" height="7" fill="#e0e7ef"/><rect width="2.5" height="7" fill="#b6c3d3"/></pattern></defs>
<rect width="{WIDTH}" height="{height}" rx="8" fill="#ffffff"/>
{body}</svg>
"##
        )
    }
}
