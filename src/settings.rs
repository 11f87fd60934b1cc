//! The settings. Their prefix is reserved, so that a misspelt one is an error.

use pgrx::guc::{GucContext, GucFlags, GucRegistry, GucSetting};

/// A week: longer than any batch, short enough that a forgotten holder is found.
static MAX_TTL: GucSetting<i32> = GucSetting::<i32>::new(7 * 24 * 3600 * 1000);
static NOTIFY: GucSetting<bool> = GucSetting::<bool>::new(false);
static STRICT_EXPIRY: GucSetting<bool> = GucSetting::<bool>::new(false);

pub fn max_ttl_ms() -> i32 {
    MAX_TTL.get()
}

pub fn strict_expiry() -> bool {
    STRICT_EXPIRY.get()
}

pub fn notify() -> bool {
    NOTIFY.get()
}

pub fn define() {
    GucRegistry::define_int_guc(
        c"lock_ext.max_ttl",
        c"Sets the longest time to live that a lease can be granted or extended for.",
        c"",
        &MAX_TTL,
        1,
        i32::MAX,
        GucContext::Suset,
        GucFlags::UNIT_MS,
    );
    GucRegistry::define_bool_guc(
        c"lock_ext.notify",
        c"Sends a notification on channel lock_ext for what this session makes of a lease.",
        c"",
        &NOTIFY,
        GucContext::Userset,
        GucFlags::default(),
    );
    GucRegistry::define_bool_guc(
        c"lock_ext.strict_expiry",
        c"Refuses writes under a token that is expired, also when it is not superseded.",
        c"",
        &STRICT_EXPIRY,
        GucContext::Suset,
        GucFlags::default(),
    );
    crate::pg::reserve_settings(c"lock_ext");
}
