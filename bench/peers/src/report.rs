//! Medians, the spread, and each system beside the floor of the same round; as CSV.

use crate::Error;

pub const HEADING: &str = "measure,size,clients,system,unit,median,lower_quarter,upper_quarter,ratio,ratio_lower_quarter,ratio_upper_quarter,rounds,beside,not_promised";

/// A line of the CSV.
pub struct Line {
    pub measure: String,
    /// Of what grows: leases, waiters, sessions, or a tenth of the day. Empty where nothing does.
    pub size: String,
    pub clients: usize,
    pub system: String,
    pub unit: String,
    pub value: Spread,
    /// How many times as fast as the floor. More is better, also where the values are times.
    pub ratio: Spread,
    pub rounds: usize,
    pub beside: String,
    pub not_promised: String,
}

/// The median, and what a quarter of the values is below and above. The lowest and the highest say more about who else used the machine.
#[derive(Clone, Copy)]
pub struct Spread {
    pub median: f64,
    pub lower: f64,
    pub upper: f64,
}

impl Spread {
    pub fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |quarters: usize| {
            // Between two of them in proportion.
            let place = (values.len().saturating_sub(1) * quarters) as f64 / 4.0;
            let (below, above) =
                (values.get(place.floor() as usize), values.get(place.ceil() as usize));
            below
                .zip(above)
                .map_or(f64::NAN, |(below, above)| below + (above - below) * place.fract())
        };
        Self { median: at(2), lower: at(1), upper: at(3) }
    }
}

/// Ratios round by round. `less_is_better` is for times.
pub fn ratios(values: &[f64], floor: &[f64], less_is_better: bool) -> Vec<f64> {
    let ratio =
        |(value, floor): (&f64, &f64)| if less_is_better { floor / value } else { value / floor };
    values.iter().zip(floor).map(ratio).collect()
}

impl Line {
    pub fn print(&self) {
        println!("{}", self.to_csv());
    }

    fn to_csv(&self) -> String {
        let text = |text: &str| match text.contains([',', '"']) {
            true => format!("\"{}\"", text.replace('"', "\"\"")),
            false => text.into(),
        };
        format!(
            "{},{},{},{},{},{},{},{},{},{},{},{},{},{}",
            self.measure,
            self.size,
            self.clients,
            text(&self.system),
            text(&self.unit),
            short(self.value.median),
            short(self.value.lower),
            short(self.value.upper),
            short(self.ratio.median),
            short(self.ratio.lower),
            short(self.ratio.upper),
            self.rounds,
            text(&self.beside),
            text(&self.not_promised),
        )
    }
}

/// With three digits that mean something.
pub fn short(value: f64) -> String {
    match value {
        100.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        0.1.. => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// The lines of what [`Line::print`] has written.
pub fn read(csv: &str) -> Result<Vec<Line>, Error> {
    let is_line = |line: &&str| !line.is_empty() && *line != HEADING;
    csv.lines().filter(is_line).map(parse).collect()
}

fn parse(line: &str) -> Result<Line, Error> {
    let wrong = || format!("this is no line of the report: {line}");
    let fields = fields(line);
    let fields: &[String; 14] = fields.as_slice().try_into().map_err(|_| wrong())?;
    let number = |text: &String| text.parse::<f64>().map_err(|_| wrong());
    let spread = |at: usize| {
        let (median, lower, upper) =
            (number(&fields[at])?, number(&fields[at + 1])?, number(&fields[at + 2])?);
        Ok::<_, Error>(Spread { median, lower, upper })
    };
    Ok(Line {
        measure: fields[0].clone(),
        size: fields[1].clone(),
        clients: fields[2].parse()?,
        system: fields[3].clone(),
        unit: fields[4].clone(),
        value: spread(5)?,
        ratio: spread(8)?,
        rounds: fields[11].parse()?,
        beside: fields[12].clone(),
        not_promised: fields[13].clone(),
    })
}

fn fields(line: &str) -> Vec<String> {
    let (mut fields, mut field, mut is_quoted) = (Vec::new(), String::new(), false);
    let mut rest = line.chars().peekable();
    while let Some(char) = rest.next() {
        match char {
            '"' if is_quoted && rest.peek() == Some(&'"') => field.extend(rest.next()),
            '"' => is_quoted = !is_quoted,
            ',' if !is_quoted => fields.push(std::mem::take(&mut field)),
            char => field.push(char),
        }
    }
    fields.push(field);
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quarters_are_between_values() {
        let spread = Spread::of(vec![4.0, 1.0, 3.0, 2.0]);
        assert_eq!((spread.lower, spread.median, spread.upper), (1.75, 2.5, 3.25));
    }

    #[test]
    fn a_line_is_read_as_it_was_written() -> Result<(), Error> {
        let written = "acquire,,8,\"a, \"\"b\"\"\",pairs/s,2.00,1.00,3.00,0.20,0.10,0.30,5,floor,";
        let lines = read(&format!("{HEADING}\n{written}\n"))?;
        let Some(line) = lines.first() else {
            return Err("no line".into());
        };
        assert_eq!((line.system.as_str(), line.clients, line.ratio.upper), ("a, \"b\"", 8, 0.3));
        assert_eq!(line.to_csv(), written);
        Ok(())
    }
}
