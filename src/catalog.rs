//! What the system catalog says of roles, relations, columns and types.

use crate::error::{Error, Result, TableName};
use crate::text::{quote_identifier, shown, string};
use pgrx::prelude::*;
use std::ffi::{CStr, c_char, c_int};

// Not bound by pgrx.
unsafe extern "C-unwind" {
    fn has_superclass(relation: pg_sys::Oid) -> bool;
    fn find_all_inheritors(
        parent: pg_sys::Oid,
        mode: pg_sys::LOCKMODE,
        parents: *mut *mut pg_sys::List,
    ) -> *mut pg_sys::List;
    fn get_partition_parent(relation: pg_sys::Oid, even_if_detached: bool) -> pg_sys::Oid;
}

/// A relation's OID, or `InvalidOid`.
pub fn relation_oid(schema: &CStr, name: &CStr) -> pg_sys::Oid {
    // SAFETY: terminated strings.
    unsafe {
        let schema = pg_sys::get_namespace_oid(schema.as_ptr(), true);
        pg_sys::get_relname_relid(name.as_ptr(), schema)
    }
}

pub fn table_name(table: pg_sys::Oid) -> TableName {
    // SAFETY: looks up the catalog; NULL for an OID that does not exist.
    unsafe {
        TableName {
            schema: string(pg_sys::get_namespace_name(pg_sys::get_rel_namespace(table))),
            table: string(pg_sys::get_rel_name(table)),
        }
    }
}

/// `schema.table`, quoted where needed.
pub fn qualified(name: &TableName) -> String {
    format!("{}.{}", quote_identifier(&name.schema), quote_identifier(&name.table))
}

/// The `relkind` and `relpersistence` of pg_class; zero for an OID that does not exist.
pub fn relation_kind(relation: pg_sys::Oid) -> (u8, u8) {
    // SAFETY: looks up the catalog.
    unsafe {
        (
            pg_sys::get_rel_relkind(relation) as u8,
            if pg_sys::get_rel_relkind(relation) == 0 {
                0
            } else {
                pg_sys::get_rel_persistence(relation) as u8
            },
        )
    }
}

pub fn is_partition(relation: pg_sys::Oid) -> bool {
    // SAFETY: looks up the catalog.
    unsafe { pg_sys::get_rel_relispartition(relation) }
}

/// Is the table a partition, or a child of another one?
pub fn has_parent(relation: pg_sys::Oid) -> bool {
    // SAFETY: looks up the catalog; an error is turned into a panic by the guard.
    unsafe { pg_sys::ffi::pg_guard_ffi_boundary(|| has_superclass(relation)) }
}

/// The table that a partition is a part of.
pub fn partitioned_table(relation: pg_sys::Oid) -> Option<pg_sys::Oid> {
    // SAFETY: as above; only asked for partitions.
    is_partition(relation).then(|| unsafe {
        pg_sys::ffi::pg_guard_ffi_boundary(|| get_partition_parent(relation, true))
    })
}

/// The table, its partitions or children, and theirs, locked as CREATE TRIGGER locks them.
pub fn lock_descendants(relation: pg_sys::Oid) -> Vec<pg_sys::Oid> {
    let mode = pg_sys::ShareRowExclusiveLock as pg_sys::LOCKMODE;
    // SAFETY: as above; the list is one of OIDs.
    unsafe {
        pg_sys::LockRelationOid(relation, mode);
        let all = pg_sys::ffi::pg_guard_ffi_boundary(|| {
            find_all_inheritors(relation, mode, std::ptr::null_mut())
        });
        (0..pg_sys::list_length(all)).map(|i| pg_sys::list_nth_oid(all, i)).collect()
    }
}

/// Below this, OIDs are the system catalog's.
pub fn is_system_relation(relation: pg_sys::Oid) -> bool {
    relation.to_u32() < pg_sys::FirstNormalObjectId
}

/// The number and type of a column, if there is one of that name.
pub fn column(table: pg_sys::Oid, name: &CStr) -> Option<(i16, pg_sys::Oid)> {
    // SAFETY: looks up the catalog; zero for no such column.
    let number = unsafe { pg_sys::get_attnum(table, name.as_ptr()) };
    // SAFETY: the column exists.
    (number > 0).then(|| (number, unsafe { pg_sys::get_atttype(table, number) }))
}

/// Is the column computed by the table itself?
pub fn is_generated(table: pg_sys::Oid, column: i16) -> bool {
    // SAFETY: looks up the catalog.
    unsafe { pg_sys::get_attgenerated(table, column) != 0 }
}

/// Does the column get a number by itself, GENERATED AS IDENTITY?
pub fn is_identity(table: pg_sys::Oid, column: i16) -> bool {
    attribute(table, column).is_some_and(|attribute| attribute.attidentity != 0)
}

/// What pg_attribute says of a column, None if there is none.
fn attribute(table: pg_sys::Oid, column: i16) -> Option<pg_sys::FormData_pg_attribute> {
    // SAFETY: looks up the catalog; the attribute's fixed part is copied while the cache holds it.
    unsafe {
        let tuple = pg_sys::SearchSysCache2(
            pg_sys::SysCacheIdentifier::ATTNUM as c_int,
            table.into(),
            column.into(),
        );
        if tuple.is_null() {
            return None;
        }
        let attribute: pg_sys::Form_pg_attribute = pg_sys::GETSTRUCT(tuple).cast();
        let attribute = *attribute;
        pg_sys::ReleaseSysCache(tuple);
        Some(attribute)
    }
}

/// Is a value of the type written in the same way whatever the settings of the session are, and like no other value? Not so dates,
/// for one, nor numbers with a fraction: 1 and 1.0 are equal.
pub fn has_one_text(table: pg_sys::Oid, column: i16, kind: pg_sys::Oid) -> bool {
    const PLAIN: [pg_sys::Oid; 9] = [
        pg_sys::TEXTOID,
        pg_sys::VARCHAROID,
        pg_sys::BPCHAROID,
        pg_sys::NAMEOID,
        pg_sys::INT2OID,
        pg_sys::INT4OID,
        pg_sys::INT8OID,
        pg_sys::UUIDOID,
        pg_sys::BOOLOID,
    ];
    // SAFETY: looks up the catalog.
    unsafe {
        let base = pg_sys::getBaseType(kind);
        if !PLAIN.contains(&base) && pg_sys::get_typtype(base) as u8 != pg_sys::TYPTYPE_ENUM {
            return false;
        }
        // Under another collation texts can be equal that are not the same.
        let collation = attribute(table, column).map_or(pg_sys::InvalidOid, |a| a.attcollation);
        collation == pg_sys::InvalidOid || pg_sys::get_collation_isdeterministic(collation)
    }
}

/// Is the column part of a primary key or another unique one?
pub fn is_in_key(table: pg_sys::Oid, column: i16) -> bool {
    // SAFETY: the relation is open and locked while its indexes are looked at.
    unsafe {
        let relation = pg_sys::relation_open(table, pg_sys::AccessShareLock as pg_sys::LOCKMODE);
        let kind = pg_sys::IndexAttrBitmapKind::INDEX_ATTR_BITMAP_KEY;
        let keys = pg_sys::RelationGetIndexAttrBitmap(relation, kind);
        let number = c_int::from(column) - pg_sys::FirstLowInvalidHeapAttributeNumber;
        let is_in_key = pg_sys::bms_is_member(number, keys);
        pg_sys::relation_close(relation, pg_sys::NoLock as pg_sys::LOCKMODE);
        is_in_key
    }
}

/// A type's name with its schema, as a cast needs it: without a length, and `bpchar` for what "char" alone cuts to one.
pub fn type_name(oid: pg_sys::Oid) -> String {
    let flags = pg_sys::FORMAT_TYPE_TYPEMOD_GIVEN | pg_sys::FORMAT_TYPE_FORCE_QUALIFY;
    // SAFETY: an OID that does not exist is an error of the server's.
    string(unsafe { pg_sys::format_type_extended(oid, -1, flags as pg_sys::bits16) })
}

/// `OPERATOR(schema.=)`: what the type itself takes for equality, not what search_path finds.
pub fn equality_operator(oid: pg_sys::Oid) -> Result<String> {
    // SAFETY: the cache entry stays.
    let operator =
        unsafe { (*pg_sys::lookup_type_cache(oid, pg_sys::TYPECACHE_EQ_OPR as c_int)).eq_opr };
    if operator == pg_sys::InvalidOid {
        return Err(Error::NoEquality { type_name: type_name(oid) });
    }
    // SAFETY: the operator exists, and its function with it; both live in the catalog.
    let (schema, name) = unsafe {
        let tuple = pg_sys::SearchSysCache1(
            pg_sys::SysCacheIdentifier::OPEROID as c_int,
            pg_sys::Datum::from(operator),
        );
        let mut null = false;
        let schema = pg_sys::SysCacheGetAttr(
            pg_sys::SysCacheIdentifier::OPEROID as c_int,
            tuple,
            pg_sys::Anum_pg_operator_oprnamespace as i16,
            &mut null,
        );
        let schema = string(pg_sys::get_namespace_name(pg_sys::Oid::from(schema.value() as u32)));
        pg_sys::ReleaseSysCache(tuple);
        (schema, string(pg_sys::get_opname(operator)))
    };
    Ok(format!("OPERATOR({}.{name})", quote_identifier(&schema)))
}

pub fn owns_table(table: pg_sys::Oid) -> bool {
    // SAFETY: no preconditions.
    let user = unsafe { pg_sys::GetUserId() };
    #[cfg(feature = "pg15")]
    // SAFETY: an OID that does not exist is an error of the server's.
    unsafe {
        pg_sys::pg_class_ownercheck(table, user)
    }
    #[cfg(not(feature = "pg15"))]
    // SAFETY: an OID that does not exist is an error of the server's.
    unsafe {
        pg_sys::object_ownercheck(pg_sys::RelationRelationId, table, user)
    }
}

/// May the caller update the table, or a column of it?
pub fn may_update(table: pg_sys::Oid) -> bool {
    let update = pg_sys::ACL_UPDATE as pg_sys::AclMode;
    // SAFETY: an OID that does not exist is an error of the server's.
    unsafe {
        let user = pg_sys::GetUserId();
        pg_sys::pg_class_aclcheck(table, user, update) == pg_sys::AclResult::ACLCHECK_OK
            || pg_sys::pg_attribute_aclcheck_all(
                table,
                user,
                update,
                pg_sys::AclMaskHow::ACLMASK_ANY,
            ) == pg_sys::AclResult::ACLCHECK_OK
    }
}

/// The name of the role that the caller acts as now.
pub fn current_role_name() -> pg_sys::NameData {
    let mut name = pg_sys::NameData::default();
    // SAFETY: the current user exists, its name is terminated and fits.
    unsafe {
        let role = CStr::from_ptr(pg_sys::GetUserNameFromId(pg_sys::GetUserId(), false));
        for (to, from) in name.data.iter_mut().zip(role.to_bytes()) {
            *to = *from as c_char;
        }
    }
    name
}

/// Is the caller `role`, or a member of it, or a superuser? A role that was dropped has no members.
pub fn is_member_of(role: &CStr) -> bool {
    // SAFETY: a terminated string.
    let oid = unsafe { pg_sys::get_role_oid(role.as_ptr(), true) };
    // SAFETY: no preconditions.
    let user = unsafe { pg_sys::GetUserId() };
    if oid == pg_sys::InvalidOid {
        // SAFETY: no preconditions.
        return unsafe { pg_sys::superuser() };
    }
    #[cfg(feature = "pg15")]
    // SAFETY: both roles exist.
    let is_member = unsafe { pg_sys::is_member_of_role(user, oid) };
    // Since 16 whoever makes a role is a member that may neither act as it nor has its privileges.
    #[cfg(not(feature = "pg15"))]
    // SAFETY: both roles exist.
    let is_member =
        unsafe { pg_sys::has_privs_of_role(user, oid) || pg_sys::member_can_set_role(user, oid) };
    user == oid || is_member
}

/// Is the caller a member of pg_monitor?
pub fn may_monitor() -> bool {
    // SAFETY: the predefined role always exists.
    unsafe {
        pg_sys::has_privs_of_role(pg_sys::GetUserId(), pg_sys::Oid::from(pg_sys::ROLE_PG_MONITOR))
    }
}

/// A trigger as pg_trigger has it.
#[derive(Debug, PartialEq, Eq)]
pub struct Trigger {
    pub name: String,
    /// The bits of tgtype.
    pub kind: i16,
    /// In ordinary sessions.
    pub fires: bool,
    /// Handed down from a partitioned table.
    pub is_copy: bool,
    /// For every row and every column: no WHEN, no UPDATE OF.
    pub is_whole: bool,
    pub args: Vec<Vec<u8>>,
}

/// The triggers of a table that call `function`.
pub fn triggers(target: pg_sys::Oid, function: pg_sys::Oid) -> Vec<Trigger> {
    let mut found = Vec::new();
    // SAFETY: the relation is open and locked while its triggers are read; names and arguments are terminated.
    unsafe {
        let relation = pg_sys::relation_open(target, pg_sys::AccessShareLock as pg_sys::LOCKMODE);
        let all = (*relation).trigdesc;
        let count = if all.is_null() { 0 } else { (*all).numtriggers as usize };
        for i in 0..count {
            let trigger = &*(*all).triggers.add(i);
            if trigger.tgfoid != function {
                continue;
            }
            found.push(Trigger {
                name: shown(CStr::from_ptr(trigger.tgname).to_bytes()),
                kind: trigger.tgtype,
                fires: [pg_sys::TRIGGER_FIRES_ON_ORIGIN, pg_sys::TRIGGER_FIRES_ALWAYS]
                    .contains(&(trigger.tgenabled as u8)),
                is_copy: trigger.tgisclone,
                is_whole: trigger.tgqual.is_null() && trigger.tgnattr == 0,
                args: (0..trigger.tgnargs as usize)
                    .map(|i| CStr::from_ptr(*trigger.tgargs.add(i)).to_bytes().to_vec())
                    .collect(),
            });
        }
        pg_sys::relation_close(relation, pg_sys::NoLock as pg_sys::LOCKMODE);
    }
    found
}
