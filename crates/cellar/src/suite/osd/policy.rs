//! policy list, show, add, set, delete, test: the policies of the cell.

use cellar_admin::fs::Files;
use cellar_admin::osd::{PolicyView, Question, policies_table};
use cellar_admin::pts::Protection;
use cellar_policy::{Form, Policies};
use serde_json::json;

use super::super::{number, print_json};
use super::Osd;
use crate::failure::{Failure, Failures, Outcome};
use crate::output::{columns, out, outln};

/// Bytes read from a file of rules: more than a policy may have.
const TEXT_MAX: u64 = 1 << 20;

impl Osd<'_> {
    pub(super) async fn list_policies(&self) -> Outcome {
        let (_, policies) = self.osds.policies().await?;
        match (self.json, policies.is_empty()) {
            (true, _) => return print_json(&policies),
            (false, true) => outln!("No policies; volumes use objects by size, or not at all"),
            (false, false) => out!("{}", policies_table(&policies, columns())),
        }
        Ok(())
    }

    /// The output form that the switches select.
    fn form(&self) -> Outcome<Option<Form>> {
        let forms = [
            ("short", Some(Form::Short)),
            ("human", Some(Form::Human)),
            ("tabular", Some(Form::Tabular)),
            ("long", Some(Form::Long)),
            ("text", None),
        ];
        let mut given = forms
            .iter()
            .filter(|(switch, _)| self.invocation.has(switch));
        match (given.next(), given.next()) {
            (None, _) => Ok(Some(Form::Human)),
            (Some((_, form)), None) => Ok(*form),
            _ => Err(Failure::usage("one form at a time")),
        }
    }

    pub(super) async fn show_policies(&self) -> Outcome {
        let form = self.form()?;
        let unroll = self.invocation.has("unroll");
        let (compiled, mut policies) = self.osds.policies().await?;
        let wanted = self.invocation.list("id");
        let is =
            |policy: &PolicyView, name: &str| policy.name == name || name.parse() == Ok(policy.id);
        for name in wanted {
            if !policies.iter().any(|policy| is(policy, name)) {
                return Err(Failure::new(format!("there is no policy {name}")));
            }
        }
        policies.retain(|policy| wanted.is_empty() || wanted.iter().any(|name| is(policy, name)));
        if self.json {
            return print_json(&policies);
        }
        for (index, policy) in policies.iter().enumerate() {
            // A single text is printed alone, so that it can be saved to a file and stored again.
            let alone = form.is_none() && policies.len() == 1;
            if !alone {
                let blank = if index > 0 { "\n" } else { "" };
                outln!("{blank}# Policy {} ({})", policy.id, policy.name);
            }
            let rules = match unroll {
                true => compiled.unrolled(policy.id),
                false => compiled.policy(policy.id).cloned(),
            };
            match (form, rules) {
                (Some(form), Some(rules)) => outln!("{}", rules.print(form)),
                _ => outln!("{}", policy.text.trim_end()),
            }
        }
        Ok(())
    }

    /// The text of -policy or -file.
    fn text_given(&self) -> Outcome<Option<String>> {
        let file = match (self.invocation.get("policy"), self.invocation.get("file")) {
            (Some(_), Some(_)) => {
                return Err(Failure::usage("-policy and -file cannot be combined"));
            }
            (Some(text), None) => return Ok(Some(text.to_owned())),
            (None, None) => return Ok(None),
            (None, Some(file)) => file,
        };
        use std::io::Read;
        let mut text = String::new();
        let read = match file {
            "-" => std::io::stdin().take(TEXT_MAX).read_to_string(&mut text),
            path => std::fs::File::open(path)
                .and_then(|file| file.take(TEXT_MAX).read_to_string(&mut text)),
        };
        read.map_err(|cause| Failure::new(format!("{file}: {cause}")))?;
        Ok(Some(text))
    }

    /// Shows the parsed policy and stores nothing.
    async fn show_only(&self, id: u32, name: &str, text: &str) -> Outcome {
        let policy = self.osds.check_policy(id, name, text).await?;
        if self.json {
            return print_json(&json!({ "name": name, "rules": policy.rules.len() }));
        }
        outln!("{policy}");
        Ok(())
    }

    fn stored(&self, id: u32) -> Outcome {
        if self.json {
            return print_json(&json!({ "id": id }));
        }
        outln!("Policy {id} is stored");
        Ok(())
    }

    pub(super) async fn add_policy(&self) -> Outcome {
        let name = self.invocation.required("name");
        let id = match self.invocation.get("id") {
            Some(text) => number("-id", text)?,
            None => 0,
        };
        let Some(text) = self.text_given()? else {
            return Err(Failure::usage("give the rules with -policy or -file"));
        };
        if self.invocation.has("noaction") {
            return self.show_only(id, name, &text).await;
        }
        let (_, policies) = self.osds.policies().await?;
        if policies.iter().any(|policy| policy.id == id) {
            return Err(Failure::new(format!(
                "policy {id} exists; 'cellar osd policy set {id}' changes it"
            )));
        }
        self.stored(self.osds.set_policy(id, name, &text).await?)
    }

    pub(super) async fn set_policy(&self) -> Outcome {
        let policy = self.invocation.required("id");
        let (name, text) = (self.invocation.get("name"), self.text_given()?);
        if name.is_none() && text.is_none() {
            return Err(Failure::usage(
                "nothing to set; give -policy, -file or -name",
            ));
        }
        if self.invocation.has("noaction") {
            let id = self.osds.policy_id(policy).await?;
            let text = text.unwrap_or_default();
            return self.show_only(id, name.unwrap_or(policy), &text).await;
        }
        self.stored(
            self.osds
                .change_policy(policy, name, text.as_deref())
                .await?,
        )
    }

    pub(super) async fn delete_policy(&self) -> Outcome {
        let mut failures = Failures::of("osd policy");
        let mut deleted = Vec::new();
        for policy in self.invocation.list("id") {
            let outcome = self.osds.delete_policy(policy).await;
            if let Some(id) = failures.note(outcome.map_err(Failure::from)) {
                match self.json {
                    true => deleted.push(id),
                    false => outln!("Policy {id} is deleted"),
                }
            }
        }
        if self.json {
            print_json(&json!({ "deleted": deleted }))?;
        }
        failures.end()
    }

    pub(super) async fn test_policy(&self) -> Outcome {
        let file = self.invocation.required("file");
        let mut question = self.question(file).await?;
        if let Some(size) = self.size("size", 0)? {
            question.size = size;
        }
        if let Some(volume) = self.invocation.get("volume") {
            volume.clone_into(&mut question.volume);
        }
        if let Some(user) = self.invocation.get("user") {
            let protection = Protection::new(&self.session.client, &self.session.cell);
            let id = protection.id_of(user).await?;
            let groups = protection.cps(id).await?;
            question.owner = id.0;
            question.ids = groups.into_iter().map(|id| id.0).collect();
        }
        let policies = self.policies_to_test(&mut question).await?;
        let preview = self.osds.preview(&policies, &question).await?;
        if self.json {
            return print_json(&preview);
        }
        out!("{}", preview.text(question.size));
        Ok(())
    }

    /// Facts about a file, as far as its path shows them.
    async fn question(&self, file: &str) -> Outcome<Question> {
        let (directory, name) = file.rsplit_once('/').unwrap_or(("", file));
        let mut question = Question {
            name: name.to_owned(),
            directory: format!("/{}", directory.trim_start_matches('/')),
            // The default: by size.
            policies: vec![cellar_policy::BY_SIZE],
            ..Question::default()
        };
        if file.starts_with("/afs/") {
            let policies = Files::new(&self.session.client).policies(file).await?;
            question.directory = policies.path_in_volume;
            question.volume = policies.volume_name;
            question.policies = vec![policies.volume, policies.directory];
            if let Some((length, owner, group)) = policies.file {
                (question.size, question.owner, question.group) = (length, owner, group);
            }
        } else if let Ok(metadata) = std::fs::metadata(file) {
            question.size = metadata.len();
        }
        Ok(question)
    }

    /// The policies to test: those of the cell, and -text as one more.
    async fn policies_to_test(&self, question: &mut Question) -> Outcome<Policies> {
        let named = self.invocation.list("policy");
        if !named.is_empty() {
            question.policies.clear();
            for name in named {
                question.policies.push(self.osds.policy_id(name).await?);
            }
        }
        let Some(text) = self.invocation.get("text") else {
            return Ok(self.osds.policies().await?.0);
        };
        let (policies, id) = self.osds.policies_with("-text", text).await?;
        match named.is_empty() {
            true => question.policies = vec![id],
            false => question.policies.push(id),
        }
        Ok(policies)
    }
}
