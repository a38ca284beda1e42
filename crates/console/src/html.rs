//! The frame of a page, and the small parts that pages share.

use cellar_admin::table::short_size;
use maud::{DOCTYPE, Markup, html};

use crate::auth::{FORM_TOKEN, Session};
use crate::cell::Site;

/// The parts of the console, in the order of the menu.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Section {
    Overview,
    Servers,
    Volumes,
    Usage,
    Jobs,
    Policies,
    Users,
    Audit,
}

impl Section {
    const ALL: [Self; 8] = [
        Self::Overview,
        Self::Servers,
        Self::Volumes,
        Self::Usage,
        Self::Jobs,
        Self::Policies,
        Self::Users,
        Self::Audit,
    ];

    fn link(self) -> (&'static str, &'static str) {
        match self {
            Self::Overview => ("/", "Overview"),
            Self::Servers => ("/servers", "Servers"),
            Self::Volumes => ("/volumes", "Volumes"),
            Self::Usage => ("/usage", "Usage"),
            Self::Jobs => ("/jobs", "Jobs"),
            Self::Policies => ("/policies", "Policies"),
            Self::Users => ("/users", "Users"),
            Self::Audit => ("/audit", "Audit"),
        }
    }

    /// Whether a session may open it.
    fn is_open_to(self, session: &Session) -> bool {
        self != Self::Audit || session.may_change()
    }
}

/// A page of the console.
pub(crate) struct Page<'a> {
    pub(crate) site: &'a Site,
    pub(crate) session: &'a Session,
    pub(crate) section: Section,
    /// The title, also the one heading of the first level.
    pub(crate) title: &'a str,
    /// Seconds between two loads that the browser makes by itself.
    pub(crate) refresh: Option<u32>,
}

impl<'a> Page<'a> {
    pub(crate) fn new(
        site: &'a Site,
        session: &'a Session,
        section: Section,
        title: &'a str,
    ) -> Self {
        Self {
            site,
            session,
            section,
            title,
            refresh: None,
        }
    }

    pub(crate) fn with(&self, body: Markup) -> Markup {
        let cell = self.site.name();
        html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    (head(&format!("{} · {cell}", self.title)))
                    @if let Some(seconds) = self.refresh {
                        meta http-equiv="refresh" content=(seconds);
                    }
                }
                body {
                    a.skip href="#main" { "Skip to the content" }
                    header.top {
                        p.brand { a href="/" { "Cellar" } " " span.cell { (cell) } }
                        nav aria-label="Pages" {
                            ul {
                                @for section in Section::ALL.into_iter().filter(|s| s.is_open_to(self.session)) {
                                    @let (href, name) = section.link();
                                    li {
                                        @if section == self.section {
                                            a href=(href) aria-current="page" { (name) }
                                        } @else {
                                            a href=(href) { (name) }
                                        }
                                    }
                                }
                            }
                        }
                        form.leave method="post" action="/logout" {
                            (form_token(self.session))
                            span.role { (self.session.role.word()) }
                            " "
                            button.plain type="submit" { "Log out" }
                        }
                    }
                    main #main tabindex="-1" {
                        h1 { (self.title) }
                        (body)
                    }
                }
            }
        }
    }
}

fn head(title: &str) -> Markup {
    html! {
        meta charset="utf-8";
        meta name="viewport" content="width=device-width, initial-scale=1";
        meta name="color-scheme" content="light dark";
        title { (title) }
        link rel="stylesheet" href="/style.css";
        link rel="icon" href="/icon.svg" type="image/svg+xml";
    }
}

/// A page without a menu: before a login, and for refusals.
pub(crate) fn alone(title: &str, body: Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head { (head(title)) }
            body.alone {
                main #main {
                    h1 { (title) }
                    (body)
                }
            }
        }
    }
}

/// A page with one sentence.
pub(crate) fn bare(title: &str, sentence: &str) -> Markup {
    alone(
        title,
        html! {
            p { (sentence) }
            p { a href="/" { "To the overview" } }
        },
    )
}

/// The field that proves that a form comes from a page of its session.
pub(crate) fn form_token(session: &Session) -> Markup {
    html! { input type="hidden" name=(FORM_TOKEN) value=(session.form_token); }
}

/// A sentence in the place of facts that a server did not give.
pub(crate) fn problem(sentence: &str) -> Markup {
    html! { p.problem role="status" { (sentence) } }
}

/// A sentence in the place of an empty list.
pub(crate) fn empty(sentence: &str) -> Markup {
    html! { p.empty { (sentence) } }
}

/// The box of a table that may be wider than the screen. It can be scrolled with the keyboard.
pub(crate) fn scroll(name: &str, table: Markup) -> Markup {
    html! { div.scroll role="region" aria-label=(name) tabindex="0" { (table) } }
}

/// An address of this console with fields in its query.
pub(crate) fn address(path: &str, fields: &[(&str, &str)]) -> String {
    let query = form_urlencoded::Serializer::new(String::new())
        .extend_pairs(fields)
        .finish();
    format!("{path}?{query}")
}

/// A link to the next page of a list, and to its beginning.
pub(crate) fn pager(first: Option<&str>, next: Option<&str>) -> Markup {
    html! {
        @if first.is_some() || next.is_some() {
            nav.pager aria-label="Pages of the list" {
                @if let Some(first) = first { a href=(first) { "To the beginning" } }
                @if let Some(next) = next { a href=(next) rel="next" { "Next page" } }
            }
        }
    }
}

/// A number with commas between thousands.
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3 + 1);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number and its noun, in the singular for one.
pub(crate) fn counted(number: u64, one: &str, many: &str) -> String {
    format!("{} {}", count(number), if number == 1 { one } else { many })
}

/// A size of so many KiB; those below 0 are 0.
pub(crate) fn kib(size: i64) -> String {
    short_size(bytes_of_kib(size))
}

/// Bytes of so many KiB; those below 0 are 0.
pub(crate) fn bytes_of_kib(size: i64) -> u64 {
    u64::try_from(size).unwrap_or(0).saturating_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_commas() {
        for (number, text) in [
            (0, "0"),
            (999, "999"),
            (1000, "1,000"),
            (850_000, "850,000"),
            (u64::MAX, "18,446,744,073,709,551,615"),
        ] {
            assert_eq!(count(number), text);
        }
        assert_eq!(counted(1, "volume", "volumes"), "1 volume");
    }

    #[test]
    fn addresses_are_encoded() {
        let hostile = "\"><script>&a=b #?";
        let address = address("/volume", &[("name", hostile)]);
        assert_eq!(address, "/volume?name=%22%3E%3Cscript%3E%26a%3Db+%23%3F");
    }
}
