//! Values of each type, those at the edges first.

use crate::checker::dice::Dice;

/// A value in the text form of its type and, where it has one that differs in what it can say, in the binary form.
#[derive(Clone, Debug)]
pub struct Value {
    pub of: String,
    /// NULL is none.
    pub text: Option<String>,
    pub binary: Option<Vec<u8>>,
}

impl Value {
    pub fn null(of: &str) -> Self {
        Self { of: of.to_owned(), text: None, binary: None }
    }

    pub fn new(of: &str, text: impl Into<String>) -> Self {
        Self { of: of.to_owned(), text: Some(text.into()), binary: None }
    }

    pub fn text(text: impl Into<String>) -> Self {
        let text = text.into();
        Self { binary: Some(text.clone().into_bytes()), ..Self::new("text", text) }
    }

    pub fn bigint(n: i64) -> Self {
        Self { binary: Some(n.to_be_bytes().to_vec()), ..Self::new("bigint", n.to_string()) }
    }

    /// As SQL. A zero byte cannot be said there.
    pub fn literal(&self, standard_strings: bool) -> String {
        let Some(text) = &self.text else { return format!("NULL::{}", self.of) };
        format!("{}::{}", quoted(text, standard_strings), self.of)
    }

    pub fn has_zero(&self) -> bool {
        self.text.as_ref().is_some_and(|text| text.contains('\0'))
    }
}

pub fn quoted(text: &str, standard_strings: bool) -> String {
    let text = text.replace('\'', "''");
    if standard_strings { format!("'{text}'") } else { format!("'{}'", text.replace('\\', "\\\\")) }
}

pub fn identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

#[rustfmt::skip]
const WORDS: [&str; 48] = [
    "a", "b", "job", " ", "  a ", "\n", "\r\n", "\t", "\x01", "\x7f", "\x1b[31m", "'", "''", "\"", "\"\"", "\\", "\\\\", "\\'", "'\\''; --", "$$", "$1", "$body$", "%", "%s%I%L%n",
    "'; DROP TABLE fuzz.canary; --", "x'); DROP TABLE fuzz.canary; --", "$$; DROP TABLE fuzz.canary; $$", "\\'; DELETE FROM fuzz.canary; --", "\"; DROP TABLE fuzz.canary; --",
    "a'||(SELECT 1/0)||'", "NULL", "null", "DEFAULT", "select", "/*", "*/", "--", "{}", "{\"a\": 1}", "lock_ext.lease", "account:", "account:7", "infinity", "-0",
    "ä", "日本", "e\u{301}", "\u{1F512}",
];

/// A text for people or machines, of 0 to some more than 1,024 bytes.
pub fn name(dice: &mut Dice) -> String {
    match dice.below(13) {
        0..=5 => WORDS[dice.below(WORDS.len())].to_owned(),
        6 => String::new(),
        7 | 12 => {
            let length = [1, 2, 62, 63, 64, 65, 1023, 1024, 1025, 1026, 2048, 9000][dice.below(12)];
            let fill = ["x", "'", "\\", "\"", "ä", "日"][dice.below(6)];
            let mut text = fill.repeat(length / fill.len());
            text += &"y".repeat(length - text.len());
            text
        }
        8 => (0..=dice.below(6)).map(|_| WORDS[dice.below(WORDS.len())]).collect(),
        9 => {
            let ranges = [
                (1, 0x7f),
                (0x80, 0x80),
                (0x300, 0x70),
                (0x3040, 0x60),
                (0x200b, 8),
                (0xe000, 16),
                (0x1f300, 256),
                (0x10fff0, 13),
            ];
            (0..=dice.below(20))
                .filter_map(|_| {
                    let (from, count) = ranges[dice.below(ranges.len())];
                    char::from_u32(from + dice.below(count) as u32)
                })
                .collect()
        }
        10 => ["a\0b", "\0", "x\0"][dice.below(3)].to_owned(),
        _ => format!("n{}", dice.below(30)),
    }
}

pub fn number(dice: &mut Dice) -> i64 {
    const EDGES: [i64; 16] = [
        0,
        1,
        -1,
        2,
        7,
        i32::MAX as i64,
        i32::MAX as i64 + 1,
        i32::MIN as i64,
        1 << 40,
        (1 << 40) + 1,
        (1 << 53) - 1,
        1 << 53,
        (1 << 53) + 1,
        i64::MAX,
        i64::MIN,
        i64::MIN + 1,
    ];
    match dice.below(4) {
        0 => dice.next() as i64,
        1 => dice.below(1000) as i64,
        _ => EDGES[dice.below(EDGES.len())],
    }
}

/// The usual one is short, so that a run sees leases expire and waits end.
pub fn interval(dice: &mut Dice) -> Value {
    #[rustfmt::skip]
    const TEXTS: [&str; 34] = [
        "0", "1 ms", "999 us", "1001 us", "1 us", "-1 us", "-1 s", "1 s", "5 s", "30 s", "30 s", "1 min", "1 day", "7 days", "7 days 1 us", "8 days", "-1 day", "1 day -24:00:00",
        "1 mon", "-1 mon", "1 mon -30 days", "1 year", "178000000 years", "-178000000 years", "178956970 years 7 mons", "2147483647 days", "-2147483648 days", "2147483647 days 2562047788:00:54.775807",
        "106751991 days", "106751992 days", "2562047788:00:54.775807", "-2562047788:00:54.775808", "00:00:00.001", "P1D",
    ];
    if dice.one_in(4) {
        let mut pick = |wide: i64| match dice.below(4) {
            0 => 0,
            1 => wide,
            2 => -wide - 1,
            _ => dice.next() as i64 % (wide / 1000 + 1),
        };
        let (micros, days, months) =
            (pick(i64::MAX), pick(i32::MAX as i64) as i32, pick(i32::MAX as i64) as i32);
        let text = format!("{months} mons {days} days {micros} microseconds");
        let mut binary = micros.to_be_bytes().to_vec();
        binary.extend(days.to_be_bytes());
        binary.extend(months.to_be_bytes());
        return Value { binary: Some(binary), ..Value::new("interval", text) };
    }
    let text = if dice.one_in(2) {
        format!("{} ms", 1 + dice.below(3000))
    } else {
        TEXTS[dice.below(TEXTS.len())].to_owned()
    };
    Value::new("interval", text)
}

pub fn uuid(dice: &mut Dice) -> Value {
    let bytes = match dice.below(4) {
        0 => [0; 16],
        1 => [255; 16],
        _ => [dice.below(3) as u8; 16],
    };
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    Value { binary: Some(bytes.to_vec()), ..Value::new("uuid", hex) }
}

pub fn timestamp(dice: &mut Dice) -> Value {
    let (text, micros) = [
        ("infinity", i64::MAX),
        ("-infinity", i64::MIN),
        ("2000-01-01 00:00:00+00", 0),
        ("4713-01-01 BC", -211_813_488_000_000_000),
        ("294276-12-31 23:59:59.999999+00", 9_223_371_331_199_999_999),
        ("294277-01-01 00:00:00+00", 9_223_371_331_200_000_000),
        ("now", 850_000_000_000_000),
        ("tomorrow", 860_000_000_000_000),
        ("epoch", -946_684_800_000_000),
    ][dice.below(9)];
    Value { binary: Some(micros.to_be_bytes().to_vec()), ..Value::new("timestamptz", text) }
}

pub fn boolean(dice: &mut Dice) -> Value {
    let yes = dice.one_in(2);
    Value { binary: Some(vec![yes.into()]), ..Value::new("boolean", if yes { "t" } else { "f" }) }
}

/// An array in both forms: of one dimension, or what else PostgreSQL calls an array.
pub fn array(dice: &mut Dice, of: &str, elements: &[Value]) -> Value {
    let item = |value: &Value| match &value.text {
        None => "NULL".to_owned(),
        Some(text) => format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"")),
    };
    let items: Vec<String> = elements.iter().map(item).collect();
    let list = items.join(",");
    let n = elements.len();
    let (text, dimensions) = match dice.below(12) {
        0 if n > 0 => (format!("{{{{{list}}}}}"), vec![(1, 1), (n, 1)]),
        1 if n > 1 && n.is_multiple_of(2) => {
            let (first, second) = items.split_at(n / 2);
            (
                format!("{{{{{}}},{{{}}}}}", first.join(","), second.join(",")),
                vec![(2, 1), (n / 2, 1)],
            )
        }
        2 if n > 0 => (format!("[0:{}]={{{list}}}", n - 1), vec![(n, 0)]),
        3 if n > 0 => (format!("[-5:{}]={{{list}}}", n as i32 - 6), vec![(n, -5)]),
        _ => (format!("{{{list}}}"), vec![(n, 1)]),
    };
    let element = if of == "text" { 25u32 } else { 20 };
    let mut binary = Vec::new();
    let dimensions = if n == 0 { vec![] } else { dimensions };
    binary.extend((dimensions.len() as i32).to_be_bytes());
    binary.extend(i32::from(elements.iter().any(|e| e.text.is_none())).to_be_bytes());
    binary.extend(element.to_be_bytes());
    for (length, from) in dimensions {
        binary.extend((length as i32).to_be_bytes());
        binary.extend(i32::to_be_bytes(from));
    }
    for element in elements {
        match (&element.text, &element.binary) {
            (Some(_), Some(bytes)) => {
                binary.extend((bytes.len() as i32).to_be_bytes());
                binary.extend(bytes);
            }
            _ => binary.extend((-1i32).to_be_bytes()),
        }
    }
    Value { binary: Some(binary), ..Value::new(&format!("{of}[]"), text) }
}

/// A string in JSON; some with escapes that jsonb does not take.
pub fn json_string(dice: &mut Dice, text: &str) -> String {
    let mut json = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => json.extend(['\\', c]),
            c if (c as u32) < 32 || dice.one_in(40) && (c as u32) < 0xd800 => {
                json += &format!("\\u{:04x}", c as u32)
            }
            c => json.push(c),
        }
    }
    if dice.one_in(60) {
        json +=
            ["\\u0000", "\\ud800", "\\udead\\ud83d", "\\ud83d\\ude00", "\\u00e4"][dice.below(5)];
    }
    json + "\""
}

#[rustfmt::skip]
const SCALARS: [&str; 40] = [
    "null", "true", "false", "0", "-0", "1", "-1", "2", "3", "7.5", "1e3", "1e400", "-1e400", "1e-400", "123456789012345678901234567890.12345678901234567890", "9007199254740993", "9223372036854775807",
    "9223372036854775808", "32768", "2147483648", "999.995", "1e130000", "\"\"", "\"x\"", "\"1\"", "\"NaN\"", "\"infinity\"", "\"{1,2}\"", "\"{\\\"a\\\"}\"", "\"[1,5)\"", "\"[5,1)\"", "\"(1,\\\"b\\\")\"",
    "\"so so\"", "\"2020-02-30\"", "\"10:00\"", "\"\\\\xdeadbeef\"", "\"101\"", "\"10.0.0.1/33\"", "\"00000000-0000-0000-0000-000000000001\"", "\"(1,2)\"",
];

pub fn json(dice: &mut Dice, depth: usize) -> String {
    match dice.below(if depth > 3 { 6 } else { 10 }) {
        0..=4 => SCALARS[dice.below(SCALARS.len())].to_owned(),
        5 => {
            let text = name(dice);
            json_string(dice, &text)
        }
        6 => {
            let limit = if dice.one_in(8) { 4 } else { 2 };
            let deep = [3, 100, 1000, 6000][dice.below(limit)];
            format!("{}1{}", "[".repeat(deep), "]".repeat(deep))
        }
        7 => {
            let items: Vec<_> = (0..dice.below(4)).map(|_| json(dice, depth + 1)).collect();
            format!("[{}]", items.join(", "))
        }
        _ => object(dice, &[], depth + 1),
    }
}

/// An object, most of whose keys are of the given ones.
pub fn object(dice: &mut Dice, keys: &[String], depth: usize) -> String {
    let mut members = Vec::new();
    for _ in 0..dice.below(4) {
        let key = if keys.is_empty() || dice.one_in(8) {
            name(dice)
        } else {
            keys[dice.below(keys.len())].clone()
        };
        let json = json(dice, depth + 1);
        members.push(format!("{}: {json}", json_string(dice, &key)));
        if dice.one_in(10) {
            members.push(members[0].clone());
        }
    }
    format!("{{{}}}", members.join(", "))
}

pub fn jsonb(text: String) -> Value {
    let mut binary = vec![1];
    binary.extend(text.as_bytes());
    Value { binary: Some(binary), ..Value::new("jsonb", text) }
}
