//! What the sessions do, one statement after the other.

use crate::checker::dice::Dice;

use super::calls::{self, HOT, Relation};
use super::fuzzer::Fuzzer;
use super::values::{self, identifier, quoted};

const VIEWS: [&str; 6] = [
    "lease_status",
    "lease_session",
    "lease_waiter",
    "lease_writer",
    "fence_status",
    "fence_observed",
];

impl Fuzzer {
    pub async fn step(&mut self) {
        self.steps += 1;
        if self.highest == i64::MAX || self.steps.is_multiple_of(4000) {
            self.rebuild().await;
        }
        if self.steps.is_multiple_of(100) {
            self.compare_fingerprints().await;
        }
        if self.steps.is_multiple_of(4) {
            self.look_for_grants().await;
        }
        let link = self.dice.below(self.links.len());
        match self.links[link].block {
            Some(_) if self.dice.one_in(5) => return self.end(link).await,
            None if self.dice.one_in(8) => self.begin(link).await,
            _ => {}
        }
        match self.dice.below(40) {
            0..=17 => {
                let public: Vec<_> =
                    self.functions.iter().filter(|f| !f.is_private()).cloned().collect();
                let function = &public[self.dice.below(public.len())];
                self.call(link, function).await;
            }
            18..=22 => {
                let missing = super::missing(self);
                let all = self
                    .functions
                    .iter()
                    .filter(|f| missing.is_empty() || missing.contains(&f.signature()));
                let all: Vec<_> = all.cloned().collect();
                let function = &all[self.dice.below(all.len())];
                self.call(link, function).await;
            }
            23..=28 => self.write(link).await,
            29..=32 => self.fenced_block(link).await,
            33..=35 => self.hand_made_trigger(link).await,
            36 => self.set(link).await,
            37 => {
                let view = VIEWS[self.dice.below(VIEWS.len())];
                self.say(link, "view", &format!("SELECT * FROM public.{view}")).await;
            }
            38 if self.links[link].block.is_none() && self.dice.one_in(3) => {
                self.say(link, "discard", "DISCARD ALL").await;
                self.links[link].is_bound = false;
                self.links[link].set_up().await;
            }
            // So that there is something to acquire, and to write to.
            _ => {
                let link = [0, 1, 1, 4][self.dice.below(4)];
                self.grant_and_attach(link).await;
            }
        }
    }

    async fn grant_and_attach(&mut self, link: usize) {
        let name = HOT[self.dice.below(HOT.len())];
        let standard = self.links[link].standard_strings();
        let lease = quoted(name, true);
        self.say(0, "lease_force_release", &format!("SELECT public.lease_force_release({lease})"))
            .await;
        let lease = quoted(name, standard);
        self.say(
            link,
            "lease_acquire",
            &format!("SELECT public.lease_acquire({lease}, 'h', '10 s')"),
        )
        .await;
        let relation = self.table(link);
        let column = relation
            .columns
            .iter()
            .find(|(name, _)| name == "token")
            .filter(|_| self.dice.one_in(2));
        let column = column.map_or("NULL".to_owned(), |(name, _)| quoted(name, standard));
        let sql = format!(
            "SELECT public.fence_attach({}, {lease}, {column})",
            quoted(&relation.name, standard)
        );
        if self.say(link, "fence_attach", &sql).await {
            self.attached.retain(|(table, _)| table.oid != relation.oid);
            self.attached.push((relation.clone(), name.to_owned()));
            if relation.name == "fuzz.types" {
                self.update_types(link, &lease, &relation).await;
            }
        }
    }

    /// An update that is as it should be.
    async fn update_types(&mut self, link: usize, lease: &str, types: &Relation) {
        let filter = format!("{{\"id\": {}}}", 1 + self.dice.below(5));
        let changes = calls::fitting(&mut self.dice, &types.columns);
        let standard = self.links[link].standard_strings();
        let sql = format!(
            "SELECT public.fenced_update('fuzz.types',
                 (SELECT token FROM public.lease_status WHERE name OPERATOR(pg_catalog.=) {lease}), {}, {})",
            quoted(&filter, standard),
            quoted(&changes, standard),
        );
        if self.say(link, "fenced_update", &sql).await {
            let [filter, changes] = [filter, changes].map(values::jsonb);
            self.check_update(link, &filter, &changes, &sql).await;
        }
    }

    /// One that the session may write to without harm to what is looked after.
    fn table(&mut self, link: usize) -> Relation {
        let mut dice = Dice(self.dice.next());
        let world = self.world(link);
        // The one of all types.
        if dice.one_in(4)
            && let Some(types) =
                self.relations.iter().find(|relation| relation.name == "fuzz.types")
        {
            return types.clone();
        }
        loop {
            let relation = world.relation(&mut dice);
            if ["r", "p", "v", "f"].contains(&relation.kind.as_str()) || dice.one_in(20) {
                return relation.clone();
            }
        }
    }

    fn value(&mut self, of: &str, standard: bool) -> String {
        let dice = &mut self.dice;
        if dice.one_in(12) {
            return "NULL".to_owned();
        }
        let text = match of {
            _ if dice.one_in(15) => values::name(dice),
            "integer" | "fuzz.positive" => {
                ["0", "1", "2", "3", "7", "100", "2147483647", "-1"][dice.below(8)].to_owned()
            }
            // Not so high that no token is left after a fence_attach.
            "bigint" => self
                .granted
                .first()
                .map_or(0, |(_, token)| *token)
                .saturating_add(dice.below(3) as i64 - 1)
                .to_string(),
            "smallint" | "numeric" | "real" | "double precision" => {
                values::number(dice).to_string()
            }
            "text" | "character varying" | "character" | "fuzz.filled" | "\"char\"" => {
                if dice.one_in(2) {
                    HOT[dice.below(HOT.len())].to_owned()
                } else {
                    values::name(dice)
                }
            }
            "jsonb" | "json" => values::json(dice, 1),
            "bytea" => "\\x00ff".to_owned(),
            "boolean" => "t".to_owned(),
            "uuid" => values::uuid(dice).text.unwrap_or_default(),
            "interval" => values::interval(dice).text.unwrap_or_default(),
            "timestamp with time zone" | "date" => values::timestamp(dice).text.unwrap_or_default(),
            "integer[]" | "text[]" => "{1,2}".to_owned(),
            "fuzz.mood" => "so so".to_owned(),
            "fuzz.pair" => "(1,b)".to_owned(),
            "int4range" => "[1,5)".to_owned(),
            _ => "1".to_owned(),
        };
        quoted(&text.replace('\0', "0"), standard)
    }

    fn statement(&mut self, link: usize, relation: &Relation) -> String {
        let standard = self.links[link].standard_strings();
        let table = &relation.name;
        let mut columns: Vec<_> =
            relation.columns.iter().filter(|_| self.dice.one_in(3)).cloned().collect();
        if columns.is_empty() {
            columns.extend(relation.columns.first().cloned());
        }
        if let Some(token) = relation.columns.iter().find(|(name, _)| name == "token")
            && !columns.contains(token)
            && self.dice.one_in(2)
        {
            columns.push(token.clone());
        }
        let names: Vec<String> = columns.iter().map(|(name, _)| identifier(name)).collect();
        let values: Vec<String> = columns.iter().map(|(_, of)| self.value(of, standard)).collect();
        let row = match relation.columns.first() {
            Some((name, of)) if self.dice.below(3) > 0 => {
                let value = self.value(of, standard);
                format!("WHERE {} OPERATOR(pg_catalog.=) {value}", identifier(name))
            }
            _ => String::new(),
        };
        match self.dice.below(8) {
            0..=2 if columns.is_empty() => format!("INSERT INTO {table} DEFAULT VALUES"),
            0..=2 => {
                format!("INSERT INTO {table} ({}) VALUES ({})", names.join(", "), values.join(", "))
            }
            3..=5 if !columns.is_empty() => {
                let set: Vec<String> = names
                    .iter()
                    .zip(&values)
                    .map(|(name, value)| format!("{name} = {value}"))
                    .collect();
                format!("UPDATE {table} SET {} {row}", set.join(", "))
            }
            6 if self.dice.one_in(6) => format!("TRUNCATE {table}"),
            _ if self.dice.one_in(3) => format!("DELETE FROM {table} {row}"),
            _ => format!("DELETE FROM {table} WHERE false"),
        }
    }

    async fn write(&mut self, link: usize) {
        let relation = self.table(link);
        let sql = self.statement(link, &relation);
        self.say(link, "write", &sql).await;
    }

    /// A block as it is meant, on tables that have a fence.
    async fn fenced_block(&mut self, link: usize) {
        if self.links[link].block.is_none() {
            self.begin(link).await;
        }
        for _ in 0..=self.dice.below(2) {
            if self.granted.is_empty() {
                break;
            }
            let (name, token) = self.granted[self.dice.below(self.granted.len())].clone();
            let lease = quoted(&name, self.links[link].standard_strings());
            let sql =
                format!("SELECT public.lease_fence({lease}, {token}, {})", self.dice.one_in(4));
            self.say(link, "lease_fence", &sql).await;
        }
        for _ in 0..=self.dice.below(3) {
            self.write(link).await;
        }
        if self.links[link].block.is_some() {
            self.end(link).await;
        }
    }

    /// A trigger with any arguments, and then statements that fire it.
    async fn hand_made_trigger(&mut self, link: usize) {
        let relation = self.table(link);
        let standard = self.links[link].standard_strings();
        let mut arguments = Vec::new();
        for i in 0..self.dice.below(5) {
            let argument = match self.dice.below(4) {
                0 if i == 0 => HOT[self.dice.below(HOT.len())].to_owned(),
                0 | 1 if !relation.columns.is_empty() => {
                    relation.columns[self.dice.below(relation.columns.len())].0.clone()
                }
                2 => String::new(),
                _ => values::name(&mut self.dice),
            };
            arguments.push(quoted(&argument.replace('\0', "0"), standard));
        }
        let timing = ["BEFORE", "BEFORE", "BEFORE", "AFTER", "INSTEAD OF"][self.dice.below(5)];
        let level = ["ROW", "STATEMENT"][self.dice.below(2)];
        let events = [
            "INSERT OR UPDATE OR DELETE",
            "INSERT",
            "UPDATE",
            "DELETE",
            "TRUNCATE",
            "INSERT OR UPDATE OR DELETE OR TRUNCATE",
        ][self.dice.below(6)];
        let condition = if self.dice.one_in(8) { "WHEN (true)" } else { "" };
        let create = format!(
            "CREATE TRIGGER {} {timing} {events} ON {} FOR EACH {level} {condition} EXECUTE FUNCTION public.fence_check({})",
            ["fuzz_hand", "\"fuzz ' \"\" hand\""][self.dice.below(2)],
            relation.name,
            arguments.join(", ")
        );
        if self.links[link].block.is_none() {
            self.begin(link).await;
        }
        if self.say(link, "trigger", &create).await {
            for _ in 0..=self.dice.below(3) {
                let sql = self.statement(link, &relation);
                self.say(link, "write", &sql).await;
            }
            self.say(link, "view", "SELECT * FROM public.fence_status").await;
            let target = quoted(&relation.name, standard);
            if self.dice.one_in(4) {
                self.say(
                    link,
                    "fence_attach",
                    &format!("SELECT public.fence_attach({target}, 'job')"),
                )
                .await;
            }
            if self.dice.one_in(2) {
                self.say(link, "fence_detach", &format!("SELECT public.fence_detach({target})"))
                    .await;
            }
        }
        if self.links[link].block.is_some() && self.dice.below(6) > 0 {
            self.say(link, "undo", "ROLLBACK").await;
            self.links[link].block = None;
        }
    }

    async fn set(&mut self, link: usize) {
        let (name, value) = [
            ("lock_ext.max_ttl", "1"),
            ("lock_ext.max_ttl", "1 s"),
            ("lock_ext.max_ttl", "2147483647"),
            ("lock_ext.max_ttl", "0"),
            ("lock_ext.max_ttl", "-1"),
            ("lock_ext.max_ttl", "1e30 d"),
            ("lock_ext.max_ttl", "x'"),
            ("lock_ext.max_ttl", "7d"),
            ("lock_ext.notify", "on"),
            ("lock_ext.notify", "maybe"),
            ("lock_ext.strict_expiry", "on"),
            ("lock_ext.strict_expiry", "off"),
            ("lock_ext.unknown", "1"),
            ("lock_ext.\"; DROP TABLE fuzz.canary", "1"),
        ][self.dice.below(14)];
        let standard = self.links[link].standard_strings();
        let local = self.dice.one_in(2);
        let sql = format!(
            "SELECT pg_catalog.set_config({}, {}, {local})",
            quoted(name, standard),
            quoted(value, standard)
        );
        self.say(link, "setting", &sql).await;
        if self.dice.one_in(2) {
            self.say(link, "setting", "RESET lock_ext.max_ttl").await;
        }
    }
}
