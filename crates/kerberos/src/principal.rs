//! Kerberos principals: their parts, their written form, and their names in AFS.

use std::fmt;

/// A principal: `alice@TEST.CELL`, `afs/test.cell@TEST.CELL`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KerberosPrincipal {
    /// The parts before the realm, which slashes separate; at least one.
    pub components: Vec<String>,
    /// The realm; empty if the written form has none.
    pub realm: String,
}

impl KerberosPrincipal {
    /// Parses the written form, in which a backslash makes `/`, `@` and itself literal.
    ///
    /// Source: RFC 1964 §2.1.1, as MIT's programs print and read it.
    pub fn parse(text: &str) -> Option<Self> {
        let mut components = vec![String::new()];
        let mut realm: Option<String> = None;
        let mut chars = text.chars();
        while let Some(c) = chars.next() {
            let literal = match c {
                '\\' => match chars.next()? {
                    'n' => '\n',
                    't' => '\t',
                    'b' => '\u{8}',
                    '0' => '\0',
                    other => other,
                },
                '/' if realm.is_none() => {
                    components.push(String::new());
                    continue;
                }
                '@' if realm.is_none() => {
                    realm = Some(String::new());
                    continue;
                }
                '@' => return None,
                other => other,
            };
            match &mut realm {
                Some(realm) => realm.push(literal),
                None => components.last_mut()?.push(literal),
            }
        }
        components
            .iter()
            .any(|part| !part.is_empty())
            .then(|| Self {
                components,
                realm: realm.unwrap_or_default(),
            })
    }

    /// The service of a cell's servers: `afs/CELL@REALM`, or `afs@REALM`.
    pub fn afs_service(cell: Option<&str>, realm: &str) -> Self {
        let components = std::iter::once("afs").chain(cell);
        Self {
            components: components.map(str::to_owned).collect(),
            realm: realm.to_owned(),
        }
    }

    /// The cell whose service this is; `None` if it is not the service of a cell. `afs/CELL` names
    /// the cell; plain `afs` is the service of the cell with the name of the realm.
    pub fn afs_cell(&self) -> Option<String> {
        match self.components.as_slice() {
            [service] if service == "afs" && !self.realm.is_empty() => {
                Some(self.realm.to_ascii_lowercase())
            }
            [service, cell] if service == "afs" && !cell.is_empty() => {
                Some(cell.to_ascii_lowercase())
            }
            _ => None,
        }
    }

    /// Whether this is a ticket-granting service.
    pub fn is_ticket_granting(&self) -> bool {
        matches!(self.components.as_slice(), [service, _] if service == "krbtgt")
    }

    /// The principal's name in the protection database of a cell of the same realm: `alice`,
    /// `alice.admin`, in lower case.
    pub fn local_name(&self) -> String {
        self.components.join(".").to_ascii_lowercase()
    }

    /// The principal's name in the protection database of a cell of another realm:
    /// `alice@test.cell`, `alice.admin@test.cell`, in lower case.
    pub fn foreign_name(&self) -> String {
        format!("{}@{}", self.local_name(), self.realm.to_ascii_lowercase())
    }
}

impl fmt::Display for KerberosPrincipal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, component) in self.components.iter().enumerate() {
            if index > 0 {
                f.write_str("/")?;
            }
            escaped(component, f)?;
        }
        if !self.realm.is_empty() {
            f.write_str("@")?;
            escaped(&self.realm, f)?;
        }
        Ok(())
    }
}

fn escaped(text: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    use fmt::Write as _;
    for c in text.chars() {
        match c {
            '/' | '@' | '\\' => write!(f, "\\{c}")?,
            '\n' => f.write_str("\\n")?,
            '\t' => f.write_str("\\t")?,
            '\u{8}' => f.write_str("\\b")?,
            '\0' => f.write_str("\\0")?,
            other => f.write_char(other)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_values_are_read_back() {
        for text in [
            "alice@TEST.CELL",
            "afs/test.cell@TEST.CELL",
            "alice",
            "host/a.b.c@R",
            "odd\\/name\\@x/y\\\\@R",
            "new\\nline@R",
        ] {
            let principal = KerberosPrincipal::parse(text).expect(text);
            assert_eq!(principal.to_string(), text);
        }
        for bad in ["", "@", "@R", "a@b@c", "a\\"] {
            assert_eq!(KerberosPrincipal::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn services_of_cells() {
        let cell = |text| KerberosPrincipal::parse(text).and_then(|p| p.afs_cell());
        assert_eq!(cell("afs/Test.Cell@R").as_deref(), Some("test.cell"));
        assert_eq!(cell("afs@TEST.CELL").as_deref(), Some("test.cell"));
        assert_eq!(cell("afs/a/b@R"), None);
        assert_eq!(cell("host/test.cell@R"), None);
        assert_eq!(cell("afs"), None);
        let service = KerberosPrincipal::afs_service(Some("test.cell"), "R");
        assert_eq!(service.to_string(), "afs/test.cell@R");
    }

    #[test]
    fn names_in_other_cells() {
        let name = |text| KerberosPrincipal::parse(text).map(|p| p.foreign_name());
        assert_eq!(name("Alice@TEST.CELL").as_deref(), Some("alice@test.cell"));
        assert_eq!(name("alice/admin@R").as_deref(), Some("alice.admin@r"));
    }
}
