//! Logins, sessions, roles, forms of other sites, and the headers of answers.

use cellar_console::auth::Role;
use cellar_testcell::{TestCell, VOLUME};
use cellar_wire::acl::Rights;
use http::StatusCode;

use crate::requests::{Form, HOST_NAME, TestConsole, form};

/// All pages.
const PAGES: [&str; 11] = [
    "/",
    "/servers",
    "/volumes",
    "/volume?id=root.cell",
    "/usage",
    "/jobs",
    "/job?server=127.0.0.1&id=1",
    "/policies",
    "/policy",
    "/users",
    "/user?id=alice",
];

/// All addresses that change something.
const CHANGES: [&str; 12] = [
    "/volume/move",
    "/volume/release",
    "/volume/backup",
    "/operation/cancel",
    "/transaction/end",
    "/usage/start",
    "/usage/stop",
    "/job/change",
    "/drain/stop",
    "/policy/store",
    "/policy/delete",
    "/user/member",
];

#[tokio::test]
async fn pages_need_a_session() {
    let console = TestConsole::silent();
    for page in PAGES.into_iter().chain(["/nothing"]) {
        for secret in [None, Some("wrong"), Some("")] {
            let answer = console.get(page, secret).await;
            assert_eq!(answer.status, StatusCode::SEE_OTHER, "{page}");
            assert_eq!(answer.header("location"), "/login", "{page}");
        }
    }
    let reader = console.session(Role::Reader);
    for page in PAGES {
        let answer = console.get(page, Some(&reader)).await;
        assert_eq!(answer.status, StatusCode::OK, "{page}");
        assert_eq!(answer.text.matches("<h1>").count(), 1, "{page}");
        assert!(answer.text.contains("lang=\"en\""), "{page}");
    }
    let answer = console.get("/nothing", Some(&reader)).await;
    assert_eq!(answer.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn the_audit_log_is_for_administrators() {
    let console = TestConsole::silent();
    let reader = console.session(Role::Reader);
    let answer = console.get("/audit", Some(&reader)).await;
    assert_eq!(answer.status, StatusCode::FORBIDDEN);
    let overview = console.get("/", Some(&reader)).await;
    assert!(!overview.text.contains("/audit"));
    let administrator = console.session(Role::Administrator);
    let answer = console.get("/audit", Some(&administrator)).await;
    assert_eq!(answer.status, StatusCode::OK);
    assert!(answer.text.contains("href=\"/audit\""));
}

#[tokio::test]
async fn changes_need_an_administrator_and_a_page_of_the_console() {
    let console = TestConsole::silent();
    let reader = console.session(Role::Reader);
    let administrator = console.session(Role::Administrator);
    let other = console.session(Role::Administrator);
    for address in CHANGES {
        let status = async |form: Form| console.send(form.body_of()).await.status;
        let own = |secret: &str| {
            let token = console.form_token(secret);
            form(address, secret, format!("form_token={token}"))
        };
        let refused = StatusCode::FORBIDDEN;
        assert_eq!(status(own(&reader)).await, refused, "{address}");
        assert_eq!(status(own("")).await, StatusCode::UNAUTHORIZED, "{address}");
        for (name, value) in [
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-site", "same-site"),
            ("sec-fetch-site", "none"),
            ("origin", "http://elsewhere.test"),
            ("origin", "null"),
            ("origin", "https://console.test:7080"),
        ] {
            let foreign = own(&administrator).with(name, value);
            assert_eq!(status(foreign).await, refused, "{address} {name} {value}");
        }
        let silent = own(&administrator)
            .with("origin", "")
            .with("sec-fetch-site", "");
        assert_eq!(status(silent).await, refused, "{address}");
        let token = console.form_token(&other);
        let bodies = [
            String::new(),
            "form_token=".to_owned(),
            format!("form_token={token}"),
        ];
        for body in bodies {
            let wrong = form(address, &administrator, body);
            assert_eq!(status(wrong).await, refused, "{address}");
        }
        let get = console.get(address, Some(&administrator)).await;
        assert_eq!(get.status, StatusCode::METHOD_NOT_ALLOWED, "{address}");
        let permitted = status(own(&administrator)).await;
        assert!(
            permitted != refused && permitted != StatusCode::UNAUTHORIZED,
            "{address}: {permitted}"
        );
    }
    let long = form("/policy/store", &administrator, "a".repeat(300 << 10));
    let answer = console.send(long.body_of()).await;
    assert_eq!(answer.status, StatusCode::PAYLOAD_TOO_LARGE);
}

#[tokio::test]
async fn readers_test_policies() {
    let console = TestConsole::silent();
    let reader = console.session(Role::Reader);
    let asked = console.post("/policy/test", &reader, "size=big").await;
    assert_eq!(asked.status, StatusCode::OK);
    assert!(asked.text.contains("is not a size"), "{}", asked.text);
    assert!(!asked.text.contains("/policy/store"));
}

#[tokio::test]
async fn text_of_requests_is_escaped() {
    let console = TestConsole::silent();
    let administrator = console.session(Role::Administrator);
    let hostile = "%22%3E%3Cscript%3Ealert(1)%3C/script%3E%3Ca%20style=%22";
    for page in [
        "/volumes?q=",
        "/users?q=",
        "/audit?q=",
        "/volume?id=",
        "/user?id=",
        "/login?token=",
    ] {
        let address = format!("{page}{hostile}");
        let answer = console.get(&address, Some(&administrator)).await;
        assert!(!answer.text.contains("<script"), "{page}: {}", answer.text);
        assert!(!answer.text.contains("<a style"), "{page}");
    }
    let fields = format!("size=1&name={hostile}&text={hostile}&file={hostile}");
    let answer = console.post("/policy/test", &administrator, &fields).await;
    assert!(answer.text.contains("&lt;script&gt;"), "{}", answer.text);
    assert!(!answer.text.contains("<script"));
}

#[tokio::test]
async fn a_token_logs_in_once() {
    let console = TestConsole::silent();
    let token = console.gate.issue(Role::Administrator);
    // A look at the address uses nothing up.
    for _ in 0..2 {
        let page = console.get(&format!("/login?token={token}"), None).await;
        assert!(page.text.contains(&format!("value=\"{token}\"")));
        assert_eq!(page.header("set-cookie"), "");
    }
    let enter = || form("/login", "", format!("token={token}"));
    let foreign = enter().with("sec-fetch-site", "cross-site").body_of();
    assert_eq!(console.send(foreign).await.status, StatusCode::FORBIDDEN);
    let entered = console.send(enter().body_of()).await;
    assert_eq!(entered.status, StatusCode::SEE_OTHER);
    let cookie = entered.header("set-cookie");
    for part in ["cellar-console=", "HttpOnly", "SameSite=Strict", "Path=/"] {
        assert!(cookie.contains(part), "{cookie}");
    }
    assert!(!cookie.contains("Secure"), "{cookie}");
    let secret = cookie.split(['=', ';']).nth(1).expect("secret").to_owned();
    let page = console.get("/", Some(&secret)).await;
    assert!(page.text.contains("administrator"));
    let again = console.send(enter().body_of()).await;
    assert_eq!(again.status, StatusCode::FORBIDDEN);
    assert!(again.text.contains("was used"), "{}", again.text);

    let left = console.post("/logout", &secret, "").await;
    assert!(left.header("set-cookie").contains("Max-Age=0"));
    assert_eq!(
        console.get("/", Some(&secret)).await.status,
        StatusCode::SEE_OTHER
    );
}

#[tokio::test]
async fn cookies_over_tls_are_secure() {
    let console = TestConsole::of(crate::requests::silent_cell(), true);
    let token = console.gate.issue(Role::Reader);
    let enter = || form("/login", "", format!("token={token}"));
    // The origin of a page without TLS is another one.
    let plain = console.send(enter().body_of()).await;
    assert_eq!(plain.status, StatusCode::FORBIDDEN);
    let own = enter().with("origin", &format!("https://{HOST_NAME}"));
    let entered = console.send(own.body_of()).await;
    let cookie = entered.header("set-cookie");
    assert!(cookie.starts_with("__Host-cellar-console="), "{cookie}");
    assert!(cookie.ends_with("; Secure"), "{cookie}");
}

#[tokio::test]
async fn answers_have_strict_headers() {
    let console = TestConsole::silent();
    let reader = console.session(Role::Reader);
    for page in ["/login", "/style.css", "/icon.svg", "/nothing", "/"] {
        for secret in [None, Some(reader.as_str())] {
            let answer = console.get(page, secret).await;
            let policy = answer.header("content-security-policy");
            assert!(policy.starts_with("default-src 'none'"), "{page}: {policy}");
            assert!(!policy.contains("script"), "{page}: {policy}");
            assert!(!policy.contains("unsafe"), "{page}: {policy}");
            assert!(policy.contains("frame-ancestors 'none'"), "{page}");
            assert_eq!(answer.header("x-content-type-options"), "nosniff", "{page}");
            assert_eq!(answer.header("referrer-policy"), "same-origin", "{page}");
            assert!(!answer.header("cache-control").is_empty(), "{page}");
            assert!(!answer.text.contains("<script"), "{page}");
            assert!(!answer.text.contains(" style="), "{page}");
        }
    }
}

#[tokio::test]
async fn a_silent_cell_is_shown_in_its_time() {
    let console = TestConsole::silent();
    let reader = console.session(Role::Reader);
    let begun = std::time::Instant::now();
    let answer = console.get("/", Some(&reader)).await;
    assert!(begun.elapsed().as_secs() < 3, "{:?}", begun.elapsed());
    assert!(answer.text.contains("No database server answers"));
}

#[tokio::test]
async fn a_volume_is_shown_though_its_server_is_silent() {
    let cell = TestCell::start(Rights::ALL);
    let console = TestConsole::of(cell.cell.clone(), false);
    let reader = console.session(Role::Reader);
    let answer = console.get("/volume?id=root.cell", Some(&reader)).await;
    assert_eq!(answer.status, StatusCode::OK);
    let text = &answer.text;
    assert!(text.contains("<h1>Volume root.cell</h1>"), "{text}");
    assert!(text.contains(&VOLUME.0.to_string()), "{text}");
    // Nothing listens on the port of the volume server.
    assert!(text.contains("no answer"), "{text}");
    let missing = console.get("/volume?id=nothing", Some(&reader)).await;
    assert!(missing.text.contains("no such entry"), "{}", missing.text);
    cell.end();
}

#[tokio::test]
async fn an_operation_that_cannot_start_is_refused_with_a_sentence() {
    let console = TestConsole::silent();
    let administrator = console.session(Role::Administrator);
    for (address, fields, status, sentence) in [
        (
            "/volume/move",
            "volume=a&to=/vicepa",
            400,
            "names no server",
        ),
        (
            "/volume/move",
            "volume=a&to=192.0.2.1+7x",
            400,
            "names no server",
        ),
        (
            "/volume/move",
            "volume=a&to=192.0.2.1+/vicepa",
            409,
            "answer",
        ),
        ("/volume/release", "volume=a", 409, "answer"),
        ("/volume/backup", "volume=a", 409, "answer"),
        ("/operation/cancel", "id=x", 400, "names no operation"),
        ("/operation/cancel", "id=7", 409, "no operation 7"),
        (
            "/transaction/end",
            "server=192.0.2.1&id=1",
            400,
            "names no transaction",
        ),
        (
            "/transaction/end",
            "server=192.0.2.1&id=1&created=5",
            409,
            "answer",
        ),
    ] {
        let answer = console.post(address, &administrator, fields).await;
        assert_eq!(
            answer.status.as_u16(),
            status,
            "{address} {fields}: {}",
            answer.text
        );
        assert!(
            answer.text.contains(sentence),
            "{address} {fields}: {}",
            answer.text
        );
    }
    let jobs = console.get("/jobs", Some(&administrator)).await;
    assert!(
        jobs.text
            .contains("has moved, released and backed up no volume"),
        "{}",
        jobs.text
    );
    let missing = console.get("/operation?id=7", Some(&administrator)).await;
    assert_eq!(missing.status, StatusCode::NOT_FOUND);
}
