//! The principals that a cell's service may have, in the order in which they are tried.
//!
//! The order is that of OpenAFS's `aklog`:
//!
//! 1. the realm that the caller gives, and no other; else
//! 2. the user's own realm;
//! 3. the realm that `[domain_realm]` gives for the cell's database server, or for the cell's name;
//! 4. the cell's name in capitals;
//! 5. the domain of the database server in capitals.
//!
//! In each realm `afs/CELL` is tried first. If the realm has the name of the cell, plain `afs`
//! follows; in other realms plain `afs` would be the key of another cell. Source: aklog(1); seen in
//! openafs@4083ffd08 src/aklog/aklog.c, `rxkad_get_ticket`.

use crate::krb5_conf::DomainRealm;
use crate::principal::KerberosPrincipal;

/// The known facts about a cell's realm.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealmHints<'a> {
    /// The realm that the user gave (`--realm`).
    pub given: Option<&'a str>,
    /// The realm of the user.
    pub user: &'a str,
    /// The name of one of the cell's database servers.
    pub server: Option<&'a str>,
}

/// The realms in which the service of `cell` may be known.
pub(crate) fn realms(cell: &str, hints: RealmHints<'_>, domains: &DomainRealm) -> Vec<String> {
    let found = match hints.given {
        Some(realm) => vec![Some(realm.to_owned())],
        None => {
            let of_server = hints.server.and_then(|server| domains.realm_of(server));
            let domain = hints.server.and_then(|server| server.split_once('.'));
            vec![
                Some(hints.user.to_owned()),
                of_server.map(str::to_owned),
                domains.realm_of(cell).map(str::to_owned),
                Some(cell.to_ascii_uppercase()),
                domain.map(|(_, domain)| domain.to_ascii_uppercase()),
            ]
        }
    };
    let named = found.into_iter().flatten();
    named.filter(|realm| !realm.is_empty()).collect()
}

/// The principals to try for the service of `cell`, in order and without duplicates.
pub fn candidates(
    cell: &str,
    hints: RealmHints<'_>,
    domains: &DomainRealm,
) -> Vec<KerberosPrincipal> {
    let mut services = Vec::new();
    for realm in &realms(cell, hints, domains) {
        let alike = realm.eq_ignore_ascii_case(cell);
        let forms = [Some(Some(cell)), alike.then_some(None)];
        for instance in forms.into_iter().flatten() {
            let service = KerberosPrincipal::afs_service(instance, realm);
            if !services.contains(&service) {
                services.push(service);
            }
        }
    }
    services
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tried(cell: &str, hints: RealmHints<'_>) -> Vec<String> {
        let found = candidates(cell, hints, &DomainRealm::default());
        found.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn own_realm_first_and_plain_afs_only_where_names_agree() {
        let hints = RealmHints {
            user: "TEST.CELL",
            ..RealmHints::default()
        };
        assert_eq!(
            tried("test.cell", hints),
            ["afs/test.cell@TEST.CELL", "afs@TEST.CELL"]
        );
        assert_eq!(
            tried("other.cell", hints),
            [
                "afs/other.cell@TEST.CELL",
                "afs/other.cell@OTHER.CELL",
                "afs@OTHER.CELL"
            ]
        );
    }

    #[test]
    fn a_realm_that_was_told_is_the_only_one() {
        let hints = RealmHints {
            given: Some("R"),
            user: "TEST.CELL",
            server: Some("db.example.org"),
        };
        assert_eq!(tried("test.cell", hints), ["afs/test.cell@R"]);
    }

    #[test]
    fn the_servers_domain_comes_last() {
        let hints = RealmHints {
            given: None,
            user: "U",
            server: Some("db1.example.org"),
        };
        assert_eq!(
            tried("cell", hints),
            [
                "afs/cell@U",
                "afs/cell@CELL",
                "afs@CELL",
                "afs/cell@EXAMPLE.ORG"
            ]
        );
    }
}
