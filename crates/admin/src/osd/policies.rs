//! Policies: their display and their changes.

use cellar_policy::{BY_SIZE, Form, ParseError, Policies, Policy, PolicyError};
use cellar_wire::AbortCode;
use cellar_wire::osddb::{DeletePolicy, ListPolicies, OsdName, PolicyEntry, SetPolicy};
use serde::Serialize;

use super::Osds;
use crate::error::{Error, Result};
use crate::table::{Side, Table};

/// A policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PolicyView {
    /// Its number.
    pub id: u32,
    /// Its name.
    pub name: String,
    /// The number of its rules.
    pub rules: usize,
    /// The revision of the table at the last change of the policy.
    pub revision: u64,
    /// The source text.
    pub text: String,
}

impl PolicyView {
    fn of(entry: &PolicyEntry, policies: &Policies) -> Self {
        Self {
            id: entry.id,
            name: entry.name.to_string(),
            rules: policies
                .policy(entry.id)
                .map_or(0, |policy| policy.rules.len()),
            revision: entry.revision,
            text: text_of(entry),
        }
    }
}

/// The output of `osd policy list`. The first rule is cut to fit into `width` columns.
pub fn policies_table(policies: &[PolicyView], width: usize) -> String {
    use Side::{Left, Right};
    let mut table = Table::new([
        ("Id", Right),
        ("Name", Left),
        ("Rules", Right),
        ("Revision", Right),
        ("Begins with", Left),
    ]);
    let names = policies.iter().map(|policy| policy.name.chars().count());
    // The width of the other columns and the blanks between columns.
    let others = 2 + 4 + 2 + names.max().unwrap_or(0).max(4) + 2 + 5 + 2 + 8 + 2;
    let room = width.saturating_sub(others).max(20);
    for policy in policies {
        table.row([
            policy.id.to_string(),
            policy.name.clone(),
            policy.rules.to_string(),
            policy.revision.to_string(),
            first_rule(&policy.text, room),
        ]);
    }
    table.to_string()
}

fn first_rule(text: &str, room: usize) -> String {
    let first = Policy::parse(text).ok().and_then(|policy| {
        let rule = policy.rules.first()?;
        Some(rule.print(Form::Human))
    });
    let first = first.unwrap_or_default();
    match first.chars().count() > room {
        true => first.chars().take(room - 1).chain(['…']).collect(),
        false => first,
    }
}

/// The error for a text that does not parse, with the line and a mark below the wrong place.
fn pointed(text: &str, error: &ParseError) -> Error {
    let line = text
        .lines()
        .nth(error.line as usize - 1)
        .unwrap_or_default();
    // A tab stays a tab, so that it has the same width in both lines.
    let before = line.chars().take(error.column as usize - 1);
    let before: String = before.map(|c| if c == '\t' { '\t' } else { ' ' }).collect();
    Error::Usage(format!("{error}\n    {line}\n    {before}^"))
}

impl Osds<'_> {
    async fn policy_entries(&self) -> Result<Vec<PolicyEntry>> {
        let reply = self
            .db(&ListPolicies {}, "cannot list the policies")
            .await?;
        Ok(reply.policies.into_vec())
    }

    /// All policies, compiled and for display.
    ///
    /// # Errors
    /// The database does not answer, or has policies of a language that is newer than this program.
    pub async fn policies(&self) -> Result<(Policies, Vec<PolicyView>)> {
        let entries = self.policy_entries().await?;
        let policies = Policies::compile(&entries).map_err(policy_error)?;
        let views = entries
            .iter()
            .map(|entry| PolicyView::of(entry, &policies))
            .collect();
        Ok((policies, views))
    }

    /// Finds the number of a policy by name or number; `none` is 0 and `size` 1.
    ///
    /// # Errors
    /// There is none.
    pub async fn policy_id(&self, name_or_id: &str) -> Result<u32> {
        if let Some(id) = without_text(name_or_id) {
            return Ok(id);
        }
        let entries = self.policy_entries().await?;
        Ok(find(&entries, name_or_id)?.id)
    }

    /// Checks the policies as they would be after a change, without changing them.
    ///
    /// # Errors
    /// The error of the database for that change, with the place in the text.
    pub async fn check_policy(&self, id: u32, name: &str, text: &str) -> Result<Policy> {
        let parsed = Policy::parse(text).map_err(|error| pointed(text, &error))?;
        let mut entries = self.policy_entries().await?;
        // A new policy gets a number that no policy has: it refers to others, and no other refers
        // to it.
        let id = match id {
            0 => {
                entries
                    .iter()
                    .map(|entry| entry.id)
                    .max()
                    .unwrap_or(BY_SIZE)
                    + 1
            }
            id => id,
        };
        entries.retain(|entry| entry.id != id);
        entries.push(entry(id, name, text)?);
        Policies::compile(&entries).map_err(policy_error)?;
        Ok(parsed)
    }

    /// The policies of the cell and one more that is not stored, and the number of that one.
    ///
    /// # Errors
    /// As [`Osds::check_policy`] for a new policy.
    pub async fn policies_with(&self, name: &str, text: &str) -> Result<(Policies, u32)> {
        let rules = self.check_policy(0, name, text).await?;
        let (policies, views) = self.policies().await?;
        let mut all: Vec<(u32, String, Policy)> = Vec::new();
        for view in &views {
            let rules = policies.policy(view.id).cloned().unwrap_or_default();
            all.push((view.id, view.name.clone(), rules));
        }
        let highest = views.iter().map(|view| view.id).max();
        let id = highest.unwrap_or(BY_SIZE) + 1;
        all.push((id, name.to_owned(), rules));
        Ok((Policies::of(all).map_err(policy_error)?, id))
    }

    /// Creates a policy (number 0: the next free one) or replaces one. Returns the number.
    ///
    /// # Errors
    /// The text is not valid, or does not fit the other policies; the name is taken; the caller has
    /// no permission.
    pub async fn set_policy(&self, id: u32, name: &str, text: &str) -> Result<u32> {
        self.check_policy(id, name, text).await?;
        let what = format!("cannot store policy {name}");
        let policy = entry(id, name, text)?;
        match self.db(&SetPolicy { policy }, &what).await {
            Ok(reply) => Ok(reply.id),
            Err(error) => Err(match error.code() {
                Some(AbortCode::EEXIST) => {
                    Error::Usage(format!("{what}: another policy has that name"))
                }
                Some(AbortCode::EINVAL) => Error::Usage(format!(
                    "{what}: numbers are 2 and more, a name has no blanks and is not a number"
                )),
                Some(AbortCode::ENOSPC) => {
                    Error::Usage(format!("{what}: all policies together are too long"))
                }
                _ => error,
            }),
        }
    }

    /// Changes a policy's text, name, or both.
    ///
    /// # Errors
    /// There is none, or as [`Osds::set_policy`].
    pub async fn change_policy(
        &self,
        name_or_id: &str,
        name: Option<&str>,
        text: Option<&str>,
    ) -> Result<u32> {
        let entries = self.policy_entries().await?;
        let old = find(&entries, name_or_id)?;
        let (old_name, old_text) = (old.name.to_string(), text_of(old));
        let name = name.unwrap_or(&old_name);
        self.set_policy(old.id, name, text.unwrap_or(&old_text))
            .await
    }

    /// Deletes a policy. Volumes and directories that name it are then treated as without a policy.
    ///
    /// # Errors
    /// There is none, another uses it, or the caller has no permission.
    pub async fn delete_policy(&self, name_or_id: &str) -> Result<u32> {
        let entries = self.policy_entries().await?;
        let id = find(&entries, name_or_id)?.id;
        let what = format!("cannot delete policy {name_or_id}");
        match self.db(&DeletePolicy { id }, &what).await {
            Ok(_) => Ok(id),
            Err(error) if error.code() == Some(AbortCode::EBUSY) => {
                let kept: Vec<_> = entries
                    .iter()
                    .filter(|entry| entry.id != id)
                    .cloned()
                    .collect();
                let user = match Policies::compile(&kept) {
                    Err(PolicyError::Missing { id, .. }) => format!("policy {id} uses it"),
                    _ => "another policy uses it".to_owned(),
                };
                Err(Error::Usage(format!("{what}: {user}")))
            }
            Err(error) => Err(error),
        }
    }
}

/// The source text. A display as a log line would escape its quotes and line feeds.
fn text_of(entry: &PolicyEntry) -> String {
    String::from_utf8_lossy(entry.text.as_bytes()).into_owned()
}

/// Policies that need no text.
fn without_text(name: &str) -> Option<u32> {
    match name {
        "0" | "none" => Some(0),
        "1" | "size" => Some(BY_SIZE),
        _ => None,
    }
}

fn find<'a>(entries: &'a [PolicyEntry], name_or_id: &str) -> Result<&'a PolicyEntry> {
    let wanted: Option<u32> = name_or_id.parse().ok();
    let found = entries.iter().find(|entry| match wanted {
        Some(id) => entry.id == id,
        None => entry.name.as_bytes() == name_or_id.as_bytes(),
    });
    found.ok_or_else(|| {
        Error::Usage(format!(
            "there is no policy {name_or_id}; 'cellar osd policy list' shows all"
        ))
    })
}

fn entry(id: u32, name: &str, text: &str) -> Result<PolicyEntry> {
    let name = OsdName::new(name.to_owned())
        .map_err(|_| Error::Usage("the name of a policy has at most 63 bytes".to_owned()))?;
    let text = cellar_wire::AfsString::new(text.to_owned())
        .map_err(|_| Error::Usage("the text of a policy has at most 64 KiB".to_owned()))?;
    Ok(PolicyEntry {
        id,
        name,
        text,
        revision: 0,
    })
}

fn policy_error(error: PolicyError) -> Error {
    Error::Usage(error.to_string())
}
