//! A member that demands certificates.

use std::path::Path;
use std::process::Command;

use cellar_celldb::Error;
use cellar_etcd::{Etcd, Settings, Tls, Validity};
use cellar_until::until_blocking;

use crate::cluster::{Cluster, get, put};

fn openssl(home: &Path, arguments: &str) -> bool {
    let output = Command::new("openssl")
        .args(arguments.split(' '))
        .current_dir(home)
        .output();
    output.is_ok_and(|output| output.status.success())
}

/// Makes an authority, and certificates of a member and of a client. `expired` has ended.
fn certificates(home: &Path) -> bool {
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 20";
    std::fs::write(
        home.join("extensions"),
        "subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n",
    )
    .unwrap();
    let mut made = openssl(
        home,
        &format!(
            "req -x509 {key} -keyout ca.key -out ca.pem -subj /CN=ca -addext basicConstraints=critical,CA:TRUE"
        ),
    );
    for (name, days) in [("member", 20), ("client", 2), ("expired", -1)] {
        let key = key.replace(" -days 20", "");
        made &= openssl(
            home,
            &format!("req -new {key} -keyout {name}.key -out {name}.csr -subj /CN={name}"),
        );
        made &= openssl(
            home,
            &format!(
                "x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days {days} -out {name}.pem -extfile extensions"
            ),
        );
    }
    made
}

#[test]
fn members_with_tls_are_reached_with_a_certificate() {
    let home = tempfile::tempdir().unwrap();
    if !certificates(home.path()) {
        eprintln!("skipped: no openssl that makes certificates (Debian: openssl)");
        return;
    }
    let place = home.path().to_owned();
    let at = |name: &str| place.join(name).display().to_string();
    let files = [at("member.pem"), at("member.key"), at("ca.pem")];
    let options = [
        "--cert-file",
        &files[0],
        "--key-file",
        &files[1],
        "--trusted-ca-file",
        &files[2],
        "--client-cert-auth",
    ];
    let tls = Tls {
        ca: Some(at("ca.pem").into()),
        certificate: Some(at("client.pem").into()),
        key: Some(at("client.key").into()),
    };
    let options: Vec<&str> = options.into_iter().collect();
    let Some(cluster) = Cluster::start_in(home, 1, &options, "https") else {
        return;
    };
    let with = |tls: Tls| Settings {
        tls,
        ..cluster.settings("one")
    };
    let db = Etcd::open(&with(tls.clone())).unwrap();
    put(&db, "key", b"value").unwrap();
    assert_eq!(get(&db, "key").unwrap(), b"value");
    let anonymous = Tls {
        certificate: None,
        key: None,
        ..tls.clone()
    };
    let refused = Etcd::open(&with(anonymous)).map(drop).unwrap_err();
    assert!(matches!(refused, Error::Unavailable(_)), "{refused}");
    let half = Tls {
        key: None,
        ..tls.clone()
    };
    let refused = Etcd::open(&with(half)).map(drop).unwrap_err();
    assert!(matches!(refused, Error::Failed(_)), "{refused}");
    let refused = Etcd::open(&with(Tls::default())).map(drop).unwrap_err();
    assert!(matches!(refused, Error::Failed(_)), "{refused}");

    // A renewed certificate needs no restart.
    let own = Tls {
        certificate: Some(at("own.pem").into()),
        key: Some(at("own.key").into()),
        ..tls
    };
    let renew = |from: &str| {
        for kind in ["pem", "key"] {
            std::fs::copy(at(&format!("{from}.{kind}")), at(&format!("own.{kind}"))).unwrap();
        }
    };
    let validity = |db: &Etcd| -> Vec<Validity> {
        let certificates = db.status().certificates;
        certificates.iter().map(|one| one.validity).collect()
    };
    renew("client");
    let db = Etcd::open(&with(own)).unwrap();
    until_blocking("the certificate ends soon", || {
        validity(&db) == [Validity::Valid, Validity::ExpiresSoon]
    });
    assert!(db.status().is_reachable);
    renew("expired");
    until_blocking("an expired certificate is refused", || {
        validity(&db) == [Validity::Valid, Validity::Expired] && !db.status().is_reachable
    });
    assert!(put(&db, "refused", b"value").is_err());
    renew("client");
    until_blocking("the renewed certificate is in use", || {
        put(&db, "taken", b"value").is_ok()
    });
}
