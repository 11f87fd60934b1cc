//! The extension's functions, as the catalog has them, and values for their arguments by name and type.

use crate::checker::dice::Dice;

use super::link::Link;
use super::values::{self, Value};

#[derive(Clone, Debug)]
pub struct Function {
    /// With its schema.
    pub name: String,
    pub arguments: Vec<(String, String)>,
    pub defaults: usize,
    pub gives: String,
    pub is_set: bool,
}

impl Function {
    pub fn signature(&self) -> String {
        let types: Vec<&str> = self.arguments.iter().map(|(_, of)| of.as_str()).collect();
        format!("{}({})", self.name, types.join(", "))
    }

    pub fn base(&self) -> &str {
        self.name.rsplit('.').next().unwrap_or(&self.name)
    }

    pub fn is_private(&self) -> bool {
        self.name.starts_with("lock_ext.")
    }
}

pub async fn functions(watch: &Link) -> Vec<Function> {
    let rows = watch
        .sql(
            "SELECT pg_catalog.json_build_array(p.pronamespace::regnamespace || '.' || p.proname, p.pronargdefaults, p.prorettype::regtype, p.proretset,
                    (SELECT coalesce(string_agg(coalesce(p.proargnames[a.n], '') || chr(1) || a.of::regtype, chr(2) ORDER BY a.n), '')
                     FROM unnest(p.proargtypes::oid[]) WITH ORDINALITY AS a (of, n)))
                    ->> i
             FROM pg_proc p JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
             JOIN pg_extension e ON e.oid = d.refobjid AND d.refclassid = 'pg_extension'::regclass AND e.extname = 'lock_ext', generate_series(0, 4) AS i
             ORDER BY p.oid::regprocedure::text, i",
        )
        .await
        .expect("the catalog");
    let rows: Vec<String> = rows.into_iter().map(Option::unwrap_or_default).collect();
    rows.chunks(5)
        .map(|f| Function {
            name: f[0].clone(),
            defaults: f[1].parse().expect("a number"),
            gives: f[2].clone(),
            is_set: f[3] == "true",
            arguments: f[4]
                .split('\x02')
                .filter(|argument| !argument.is_empty())
                .map(|argument| argument.split_once('\x01').expect("a name and a type"))
                .map(|(name, of)| (name.to_owned(), of.to_owned()))
                .collect(),
        })
        .collect()
}

#[derive(Clone, Debug)]
pub struct Relation {
    /// As SQL names it.
    pub name: String,
    pub oid: u32,
    pub kind: String,
    /// Names and types of the columns.
    pub columns: Vec<(String, String)>,
    /// Nothing of it may be changed, so that whoever could is not let near it.
    pub is_taboo: bool,
}

pub async fn relations(watch: &Link) -> Vec<Relation> {
    let rows = watch
        .sql(
            "SELECT (ARRAY[c.oid::regclass::text, c.oid::text, c.relkind::text, (c.relnamespace <> 'fuzz'::regnamespace OR c.relname = 'canary')::text,
                     (SELECT coalesce(string_agg(attname || chr(1) || atttypid::regtype, chr(2)), '') FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped)])[i]
             FROM pg_class c, generate_series(1, 5) AS i
             WHERE c.relnamespace IN ('fuzz'::regnamespace, 'lock_ext'::regnamespace)
                OR c.oid IN ('pg_class'::regclass, 'pg_authid'::regclass, 'pg_class_oid_index'::regclass, 'lease_status'::regclass)
                OR c.oid = (SELECT reltoastrelid FROM pg_class WHERE oid = 'fuzz.types'::regclass)
             ORDER BY c.oid, i",
        )
        .await
        .expect("the catalog");
    let rows: Vec<String> = rows.into_iter().map(Option::unwrap_or_default).collect();
    rows.chunks(5)
        .map(|r| Relation {
            name: r[0].clone(),
            oid: r[1].parse().expect("an OID"),
            kind: r[2].clone(),
            is_taboo: r[3] == "true",
            columns: r[4]
                .split('\x02')
                .filter_map(|column| column.split_once('\x01'))
                .map(|(name, of)| (name.to_owned(), of.to_owned()))
                .collect(),
        })
        .collect()
}

/// Names that come again and again, so that leases meet their tokens and tables their leases.
pub const HOT: [&str; 4] = ["job", "account:7", "'; DROP TABLE fuzz.canary; --\\", "a"];

/// What there is to call the functions with.
pub struct World<'a> {
    pub relations: &'a [Relation],
    /// Leases that were granted, with the last token of each.
    pub granted: &'a [(String, i64)],
    pub attached: &'a [(Relation, String)],
    pub check: u32,
    pub may_do_all: bool,
}

impl World<'_> {
    pub fn relation(&self, dice: &mut Dice) -> &Relation {
        loop {
            let relation = &self.relations[dice.below(self.relations.len())];
            if !relation.is_taboo || !self.may_do_all && dice.one_in(6) {
                return relation;
            }
        }
    }

    fn lease(&self, dice: &mut Dice) -> (String, Option<i64>) {
        if !self.granted.is_empty() && dice.below(5) < 3 {
            let (name, token) = &self.granted[dice.below(self.granted.len())];
            return (name.clone(), Some(*token));
        }
        if dice.one_in(2) {
            (HOT[dice.below(HOT.len())].to_owned(), None)
        } else {
            (values::name(dice), None)
        }
    }

    /// None if the type is not known here: a new function has one that the fuzzer has to learn.
    pub fn arguments(
        &self,
        dice: &mut Dice,
        function: &Function,
        zero_bytes: bool,
    ) -> Option<Vec<Value>> {
        let mut relation = self.relation(dice);
        let is_attach = function.base().contains("attach");
        while is_attach && !["r", "p"].contains(&relation.kind.as_str()) && dice.below(4) > 0 {
            relation = self.relation(dice);
        }
        let (mut lease, mut token) = self.lease(dice);
        // Most names of the others are held.
        if function.base().starts_with("lease_acquire") && dice.one_in(2) {
            (lease, token) = (values::name(dice), None);
        }
        let fits = function.base() == "fenced_update" && dice.below(3) > 0;
        if fits && !self.attached.is_empty() {
            let (table, name) = &self.attached[dice.below(self.attached.len())];
            relation = table;
            lease = name.clone();
            token =
                self.granted.iter().find(|(granted, _)| granted == name).map(|(_, token)| *token);
        }
        let names: Vec<String> = relation.columns.iter().map(|(name, _)| name.clone()).collect();
        let many = (0..dice.below(5)).map(|_| self.lease(dice)).collect::<Vec<_>>();
        let count = function.arguments.len()
            - if dice.one_in(2) { dice.below(function.defaults + 1) } else { 0 };
        function.arguments[..count]
            .iter()
            .map(|(name, of)| {
                if dice.one_in(25) || is_attach && name != "lease" && of == "text" && dice.one_in(3)
                {
                    return Some(Value::null(of));
                }
                let column = |dice: &mut Dice| {
                    if dice.one_in(10) || names.is_empty() {
                        values::name(dice)
                    } else if dice.one_in(2) && names.iter().any(|name| name == "token") {
                        "token".to_owned()
                    } else {
                        names[dice.below(names.len())].clone()
                    }
                };
                let number = |dice: &mut Dice, known: Option<i64>| match (known, dice.below(8)) {
                    (Some(token), 0..=5) => token,
                    (Some(token), 6) => token.wrapping_add([1, -1, 1 << 40][dice.below(3)]),
                    (None, 0..=1) => 1 + dice.below(50) as i64,
                    _ => values::number(dice),
                };
                let value = match (of.as_str(), name.as_str()) {
                    ("text", "lease" | "name") => Value::text(lease.clone()),
                    ("text", "token_column" | "lease_column") => Value::text(column(dice)),
                    ("text", "filter_type" | "changes_type") if dice.below(4) > 0 => {
                        Value::text("object")
                    }
                    ("text", _) => Value::text(values::name(dice)),
                    ("text[]", "names") => {
                        let names = many.iter().map(|(name, _)| {
                            if dice.one_in(40) {
                                Value::null("text")
                            } else {
                                Value::text(name.clone())
                            }
                        });
                        let names: Vec<_> = names.collect();
                        values::array(dice, "text", &names)
                    }
                    ("text[]", _) => {
                        let names: Vec<_> =
                            (0..dice.below(4)).map(|_| Value::text(column(dice))).collect();
                        values::array(dice, "text", &names)
                    }
                    ("bigint[]", _) => {
                        let count = if dice.one_in(8) { dice.below(6) } else { many.len() };
                        let token = |dice: &mut Dice, i| {
                            number(dice, many.get(i).and_then(|(_, token)| *token))
                        };
                        let tokens: Vec<_> = (0..count)
                            .map(|i| {
                                if dice.one_in(40) {
                                    Value::null("bigint")
                                } else {
                                    Value::bigint(token(dice, i))
                                }
                            })
                            .collect();
                        values::array(dice, "bigint", &tokens)
                    }
                    // Most of the time leave some tokens.
                    ("bigint", "floor" | "highest") if !dice.one_in(150) => {
                        Value::bigint([-1, 0, 5, i64::MIN, i64::MAX, 1 << 53][dice.below(6)])
                    }
                    ("bigint", _) => Value::bigint(number(dice, token)),
                    ("interval", "wait") if !dice.one_in(8) => {
                        Value::new("interval", format!("{} ms", dice.below(25)))
                    }
                    ("interval", "min_hold" | "pause") if !dice.one_in(4) => {
                        Value::new("interval", format!("{} ms", dice.below(2) * 50))
                    }
                    ("interval", "ttl") if dice.one_in(2) => {
                        Value::new("interval", format!("{} ms", 1 + dice.below(9000)))
                    }
                    ("interval", "idle" | "older_than") if !dice.one_in(10) => {
                        Value::new("interval", format!("{} s", 1 + dice.below(20)))
                    }
                    ("interval", _) => values::interval(dice),
                    ("boolean", _) => values::boolean(dice),
                    ("uuid", _) => values::uuid(dice),
                    ("timestamp with time zone", _) => values::timestamp(dice),
                    ("jsonb", "filter")
                        if fits && names.iter().any(|name| name == "id") && dice.below(3) > 0 =>
                    {
                        values::jsonb(format!("{{\"id\": {}}}", dice.below(6)))
                    }
                    ("jsonb", "changes") if fits && dice.below(4) > 0 => {
                        values::jsonb(fitting(dice, &relation.columns))
                    }
                    ("jsonb", "filter" | "changes") if !dice.one_in(12) => {
                        values::jsonb(values::object(dice, &names, 0))
                    }
                    ("jsonb", _) => values::jsonb(values::json(dice, 0)),
                    ("regclass", _) if dice.one_in(12) => Value::new(
                        of,
                        [0, 1, 1259, u32::MAX]
                            [if self.may_do_all { 3 * dice.below(2) } else { dice.below(4) }]
                        .to_string(),
                    ),
                    ("regclass", _) => Value {
                        binary: Some(relation.oid.to_be_bytes().to_vec()),
                        ..Value::new(of, relation.name.clone())
                    },
                    ("oid", "function") if dice.below(5) > 0 => {
                        Value::new(of, self.check.to_string())
                    }
                    ("oid", _) => {
                        let odd = [0, 1, 16384, u32::MAX, self.check][dice.below(5)];
                        Value::new(of, if dice.one_in(6) { odd } else { relation.oid }.to_string())
                    }
                    ("bytea", _) => {
                        let bytes: String = (0..dice.below(12))
                            .map(|_| ["00", "61", "27", "5c", "c3", "ff"][dice.below(6)])
                            .collect();
                        Value::new(of, format!("\\x{bytes}"))
                    }
                    _ => return None,
                };
                let has_zero = value.has_zero() && !zero_bytes;
                Some(if has_zero {
                    Value::new(of, value.text.unwrap_or_default().replace('\0', "0"))
                } else {
                    value
                })
            })
            .collect()
    }
}

/// Changes that the columns' types take, most of the time.
pub fn fitting(dice: &mut Dice, columns: &[(String, String)]) -> String {
    let mut members = Vec::new();
    for (name, of) in columns
        .iter()
        .filter(|(name, _)| !["id", "gen", "ident", "token", "part"].contains(&name.as_str()))
    {
        let value = match of.as_str() {
            "integer" | "smallint" | "fuzz.positive" => (1 + dice.below(9)).to_string(),
            "bigint" => values::number(dice).to_string(),
            "numeric" => {
                ["1.25", "9007199254740993.000000000000000001", "0"][dice.below(3)].to_owned()
            }
            "text" | "jsonb" => {
                let text = ["", "it's", "a\\b", "$1", "\"q\""][dice.below(5)];
                values::json_string(dice, text)
            }
            "boolean" => "true".to_owned(),
            "fuzz.filled" => "\"x\"".to_owned(),
            "fuzz.mood" => "\"it's \\\"fine\\\"\\\\\"".to_owned(),
            "integer[]" => "[1, 2]".to_owned(),
            _ => "null".to_owned(),
        };
        if dice.below(3) == 0 || members.is_empty() {
            members.push(format!("{}: {value}", values::json_string(dice, name)));
        }
    }
    format!("{{{}}}", members.join(", "))
}
