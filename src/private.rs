//! Functions of the schema `lock_ext`, which only the views and the functions in SQL call.

use crate::error::{Error, Result, or_raise};
use crate::pg;
use crate::types::{Kind, Label, Text, Token};
use crate::{admin, attach, fence, observe, text, token, update};
use pgrx::prelude::*;

fn check<'a>(function: Option<pg_sys::Oid>, schema: &'a Option<Text>) -> attach::Check<'a> {
    attach::Check {
        function: function.unwrap_or(pg_sys::InvalidOid),
        schema: schema.as_ref().map_or(&[], |schema| schema.0.as_slice()),
    }
}

fn target(table: Option<pg_sys::Oid>) -> Result<pg_sys::Oid> {
    table.ok_or_else(|| Error::Null { what: "table".into() })
}

#[pg_schema]
pub mod lock_ext {
    use super::*;
    use pgrx::datum::TimestampWithTimeZone;

    #[pg_extern(volatile, parallel_unsafe)]
    #[allow(clippy::type_complexity, reason = "the columns of a view")]
    fn status() -> TableIterator<
        'static,
        (
            name!(name, Text),
            name!(state, &'static str),
            name!(holder, Option<Text>),
            name!(holder_role, Option<Text>),
            name!(token, i64),
            name!(acquired_at, TimestampWithTimeZone),
            name!(expires_at, Option<TimestampWithTimeZone>),
            name!(remaining, Option<Interval>),
            name!(ttl, Option<Interval>),
            name!(session_pid, Option<i32>),
            name!(completed_until, Option<TimestampWithTimeZone>),
            name!(grants, i64),
            name!(waiters, i64),
            name!(writers, i64),
        ),
    > {
        let rows =
            or_raise(pg::refuse_in_parallel("lock_ext.status").and_then(|()| admin::status()));
        TableIterator::new(rows.into_iter().map(|s| {
            (
                s.name,
                s.state.name(),
                s.holder,
                s.holder_role,
                s.token.0,
                pg::timestamptz(s.acquired_at),
                s.expires_at.map(pg::timestamptz),
                s.remaining.map(Interval::from_micros),
                s.ttl.map(Interval::from_micros),
                s.session,
                s.completed_until.map(pg::timestamptz),
                s.grants,
                s.waiters,
                s.writers,
            )
        }))
    }

    #[pg_extern(volatile, parallel_unsafe)]
    fn writers() -> TableIterator<
        'static,
        (name!(name, Text), name!(pid, Option<i32>), name!(token, i64), name!(superseded, bool)),
    > {
        let rows =
            or_raise(pg::refuse_in_parallel("lock_ext.writers").and_then(|()| admin::writers()));
        TableIterator::new(rows.into_iter().map(|w| (w.name, w.pid, w.token.0, w.superseded)))
    }

    #[pg_extern(volatile, parallel_unsafe)]
    fn waiters() -> TableIterator<
        'static,
        (
            name!(name, Text),
            name!(pid, i32),
            name!(place, i64),
            name!(since, Option<TimestampWithTimeZone>),
        ),
    > {
        let rows =
            or_raise(pg::refuse_in_parallel("lock_ext.waiters").and_then(|()| admin::waiters()));
        TableIterator::new(
            rows.into_iter().map(|w| (w.name, w.pid, w.place, w.since.map(pg::timestamptz))),
        )
    }

    #[pg_extern(volatile, parallel_unsafe)]
    fn observed() -> TableIterator<
        'static,
        (name!(resource, Text), name!(token, i64), name!(observed_at, TimestampWithTimeZone)),
    > {
        let rows =
            or_raise(pg::refuse_in_parallel("lock_ext.observed").and_then(|()| observe::all()));
        TableIterator::new(rows.into_iter().map(|o| (o.resource, o.token.0, pg::timestamptz(o.at))))
    }

    #[pg_extern(volatile, parallel_unsafe)]
    fn attach_statements(
        function: Option<pg_sys::Oid>,
        schema: Option<Text>,
        table: Option<pg_sys::Oid>,
        lease: Option<Text>,
        token_column: Option<Text>,
        lease_column: Option<Text>,
    ) -> Vec<Text> {
        or_raise((|| {
            pg::refuse_read_only("fence_attach")?;
            let wanted = attach::Wanted {
                lease: lease.as_ref(),
                token_column: token_column.as_ref(),
                lease_column: lease_column.as_ref(),
            };
            attach::attach(&check(function, &schema), target(table)?, &wanted)
        })())
    }

    #[pg_extern(volatile, parallel_unsafe)]
    fn detach_statements(function: Option<pg_sys::Oid>, table: Option<pg_sys::Oid>) -> Vec<Text> {
        or_raise((|| {
            pg::refuse_read_only("fence_detach")?;
            attach::detach(&check(function, &None), target(table)?)
        })())
    }

    /// The arguments of a trigger, which pg_trigger keeps each with a zero byte behind it.
    #[pg_extern(immutable, parallel_safe)]
    fn trigger_arguments(tgargs: Option<Vec<u8>>) -> Vec<Text> {
        let tgargs = tgargs.unwrap_or_default();
        tgargs.split(|byte| *byte == 0).for_each(text::verify);
        let mut arguments: Vec<Text> =
            tgargs.split(|byte| *byte == 0).map(|argument| Text(argument.to_vec())).collect();
        arguments.pop();
        arguments
    }

    #[pg_extern(volatile, parallel_unsafe)]
    fn tokens_are_ahead(
        table: Option<pg_sys::Oid>,
        highest: Option<i64>,
        may_raise: Option<bool>,
    ) -> bool {
        let may_raise = may_raise == Some(true);
        or_raise(target(table).and_then(|table| attach::is_ahead(table, highest, may_raise)))
    }

    #[pg_extern(volatile, parallel_unsafe)]
    fn attached_lease(function: Option<pg_sys::Oid>, table: Option<pg_sys::Oid>) -> Text {
        or_raise(
            target(table).and_then(|table| attach::attached_lease(&check(function, &None), table)),
        )
    }

    #[pg_extern(volatile, parallel_unsafe)]
    fn update_statement(
        table: Option<pg_sys::Oid>,
        filter_type: Option<Text>,
        filter: Option<Vec<Text>>,
        values: Option<Vec<Text>>,
        changes_type: Option<Text>,
        changes: Option<Vec<Text>>,
        all_rows: Option<bool>,
    ) -> Text {
        or_raise((|| {
            update::statement(
                target(table)?,
                filter_type.map(|_| filter.as_deref()),
                values.as_deref().unwrap_or_default(),
                changes_type.map(|_| changes.as_deref()),
                all_rows,
            )
        })())
    }

    #[pg_extern(volatile, parallel_unsafe)]
    fn conversion_statement(
        table: Option<pg_sys::Oid>,
        filter: Option<Vec<Text>>,
        changes: Option<Vec<Text>>,
    ) -> Text {
        let filter = filter.unwrap_or_default();
        let changes = changes.unwrap_or_default();
        or_raise(target(table).and_then(|table| update::conversion(table, &filter, &changes)))
    }

    #[pg_extern(volatile, parallel_unsafe)]
    fn origin() -> i64 {
        or_raise(pg::refuse_on_standby("lock_ext.origin").and_then(|()| token::packed_origin()))
    }

    /// What the transaction's writes carried for the lease before; from now on they carry `token`.
    #[pg_extern(volatile, parallel_unsafe)]
    fn carry(lease: Option<Text>, token: Option<i64>) -> Option<i64> {
        or_raise((|| {
            pg::refuse_read_only("fenced_update")?;
            let name = Label::new(Kind::Lease, lease.as_ref())?;
            let token = Token::new(token)?;
            fence::carry_for_update(name, token).map(|before| before.map(|token| token.0))
        })())
    }

    #[pg_extern(volatile, parallel_unsafe)]
    fn carry_again(lease: Option<Text>, token: Option<i64>) {
        or_raise(Label::new(Kind::Lease, lease.as_ref()).map(|name| {
            fence::carry_again(name, token.map(Token));
        }))
    }
}
