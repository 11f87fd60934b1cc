//! ALTER EXTENSION ... UPDATE: the library serves the catalog of every version that was released, and what is updated is no different from what
//! is installed anew. `tests/upgrade` has the install scripts as they were released; the stage `install` of the tests puts them beside the new one.

use lock_ext_sessions::{Asked, Db, Refused, STALE, Session};

/// Versions that have an install script of their own in `tests/upgrade`.
const RELEASED: [&str; 1] = ["0.1.0"];

async fn install(db: &Db, version: &str) -> Session {
    let session = db.session().await;
    session.sql(&format!("CREATE EXTENSION lock_ext VERSION '{version}'")).await.unwrap();
    session
}

/// All that the extension consists of, one line each. OIDs are left out, and so is the order of what has none.
async fn catalog(session: &Session) -> Vec<String> {
    session
        .list(
            "WITH member AS (
                 SELECT classid, objid FROM pg_depend
                  WHERE deptype = 'e' AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'lock_ext')
             ), relation AS (
                 SELECT c.* FROM pg_class c JOIN member ON classid = 'pg_class'::regclass AND objid = c.oid
             )
             SELECT concat_ws(' | ', 'member', o.type, o.identity, obj_description(objid, classid::regclass::name))
               FROM member, pg_identify_object(classid, objid, 0) o
             UNION ALL
             SELECT concat_ws(' | ', pg_get_functiondef(p.oid), proowner::regrole, proacl)
               FROM pg_proc p JOIN member ON classid = 'pg_proc'::regclass AND objid = p.oid
             UNION ALL
             SELECT concat_ws(' | ', oid::regclass, relkind, relpersistence, relowner::regrole, relacl, relam, reloptions,
                              CASE WHEN relkind = 'v' THEN pg_get_viewdef(oid) END)
               FROM relation
             UNION ALL
             SELECT concat_ws(' | ', attrelid::regclass, attnum, attname, format_type(atttypid, atttypmod), attnotnull, attstorage,
                              attcompression, attcollation::regcollation, attacl, pg_get_expr(adbin, adrelid),
                              col_description(attrelid, attnum))
               FROM relation JOIN pg_attribute ON attrelid = oid LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
              WHERE attnum > 0
             UNION ALL
             SELECT concat_ws(' | ', conrelid::regclass, conname, pg_get_constraintdef(c.oid))
               FROM relation JOIN pg_constraint c ON conrelid = relation.oid
             UNION ALL
             SELECT pg_get_indexdef(indexrelid) FROM relation JOIN pg_index ON indrelid = oid
             UNION ALL
             SELECT concat_ws(' | ', seqrelid::regclass, seqtypid::regtype, seqstart, seqincrement, seqmax, seqmin, seqcache, seqcycle)
               FROM relation JOIN pg_sequence ON seqrelid = oid
             UNION ALL
             SELECT concat_ws(' | ', nspname, nspowner::regrole, nspacl)
               FROM pg_namespace n JOIN member ON classid = 'pg_namespace'::regclass AND objid = n.oid
             UNION ALL
             SELECT concat_ws(' | ', 'dumped', config::regclass, condition)
               FROM pg_extension, unnest(extconfig, extcondition) AS dumped (config, condition) WHERE extname = 'lock_ext'
             ORDER BY 1",
            &[],
        )
        .await
        .unwrap()
}

#[tokio::test]
async fn an_updated_catalog_is_that_of_a_fresh_installation() {
    let fresh = Db::fresh().await;
    let expected = catalog(&fresh.watch).await;
    assert!(expected.len() > 150, "{}", expected.len());
    for version in RELEASED {
        let db = fresh.another_bare().await;
        let session = install(&db, version).await;
        assert_ne!(catalog(&session).await, expected, "{version}");
        session.sql("ALTER EXTENSION lock_ext UPDATE").await.unwrap();
        let updated = catalog(&session).await;
        for (side, other, name) in
            [(&updated, &expected, "updated"), (&expected, &updated, "fresh")]
        {
            let only: Vec<_> = side.iter().filter(|line| !other.contains(line)).collect();
            assert!(only.is_empty(), "only in the {name} catalog: {only:#?}");
        }
        assert_eq!(updated.len(), expected.len());
    }
}

/// From the installation of the new library until the update, and over the update: with open sessions, held leases, fences, and a
/// transaction that is open meanwhile.
#[tokio::test]
async fn leases_and_fences_go_on_over_an_update() {
    for version in RELEASED {
        let db = Db::bare().await;
        let a = install(&db, version).await;
        let [b, c] = db.sessions().await;
        db.fence("j").await;
        let first = a.acq("j", "A", "1 h").await.granted();
        assert_eq!(first, 1);
        let lost = b.acq("lost", "B", "60 s").await.granted();
        assert_eq!(lost, 2);
        b.sql("BEGIN").await.unwrap();
        assert_eq!(b.acq("rolled back", "B", "60 s").await.granted(), 3);
        b.rollback().await;
        a.cp("j", first, "{\"step\": 1}").await.unwrap();
        assert_eq!(a.once("done").await, Ok(true));
        assert_eq!(b.rel("lost", lost).await, Ok(true));
        assert_eq!(b.fence("lost", lost).await.refused(STALE).code, STALE);
        let bound = c.sacq("bound", "C", "0").await.granted();
        assert_eq!(bound, 4);
        // An open transaction with a fenced write and a grant in it.
        b.sql("BEGIN").await.unwrap();
        b.fence("j", first).await.unwrap();
        b.sql("UPDATE plain SET v = 1 WHERE id = 1").await.unwrap();
        assert_eq!(b.acq("open", "B", "60 s").await.granted(), 5);

        db.watch.sql("ALTER EXTENSION lock_ext UPDATE").await.unwrap();

        b.commit().await.unwrap();
        assert_eq!(db.v("plain", 1).await, 1);
        a.ext("j", first, "1 h").await.extended();
        assert_eq!(a.is_current("j", first).await, Ok(true));
        assert_eq!(a.read_cp("j").await.unwrap().as_deref(), Some("{\"step\": 1}"));
        assert_eq!(a.once("done").await, Ok(false));
        assert_eq!(c.is_current("bound", bound).await, Ok(true));
        // The same count, in sessions old and new.
        assert_eq!(a.acq("k", "A", "60 s").await.granted(), 6);
        assert_eq!(db.session().await.acq("l", "A", "60 s").await.granted(), 7);
        // What the update brought.
        db.watch.sql("SELECT setval('lock_ext.lease_token_seq', 1)").await.unwrap();
        assert_eq!(b.acq("m", "B", "60 s").await.granted(), 8);
    }
}
