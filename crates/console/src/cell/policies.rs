//! Policies: the list, tests, and changes.

use cellar_admin::osd::{Osds, PolicyView, Preview, Question};

use super::{Answer, Site};

/// The name of a policy that is tested before it is stored.
const DRAFT: &str = "this text";

/// A file for which a policy is tested.
#[derive(Clone, Debug, Default)]
pub(crate) struct TestFile {
    /// The path in the volume.
    pub(crate) path: String,
    pub(crate) size: u64,
    /// The name of the volume; empty for none.
    pub(crate) volume: String,
    /// The user who stores it; empty for none.
    pub(crate) user: String,
}

const WHAT: &str = "the OSD database";

impl Site {
    pub(crate) fn osds(&self) -> Osds<'_> {
        Osds::new(&self.client, &self.cell)
    }

    /// All policies.
    pub(crate) async fn policies(&self) -> Answer<Vec<PolicyView>> {
        let list = async { Ok(self.osds().policies().await?.1) };
        self.within(WHAT, list).await
    }

    /// Where a file would be stored under a text of rules that is not stored.
    pub(crate) async fn test_policy(&self, text: &str, file: &TestFile) -> Answer<Preview> {
        let test = async {
            let osds = self.osds();
            let (policies, id) = osds.policies_with(DRAFT, text).await?;
            let (directory, name) = file.path.rsplit_once('/').unwrap_or(("", &file.path));
            let mut question = Question {
                name: name.to_owned(),
                directory: format!("/{}", directory.trim_start_matches('/')),
                volume: file.volume.clone(),
                size: file.size,
                policies: vec![id],
                ..Question::default()
            };
            if !file.user.is_empty() {
                let protection = self.protection();
                let id = protection.id_of(&file.user).await?;
                question.owner = id.0;
                let groups = protection.cps(id).await?;
                question.ids = groups.into_iter().map(|id| id.0).collect();
            }
            osds.preview(&policies, &question).await
        };
        self.within(WHAT, test).await
    }

    /// Stores a policy; number 0 for a new one. Returns its number.
    pub(crate) async fn store_policy(&self, id: u32, name: &str, text: &str) -> Answer<u32> {
        self.within(WHAT, self.osds().set_policy(id, name, text))
            .await
    }

    /// Deletes a policy.
    pub(crate) async fn delete_policy(&self, id: u32) -> Answer<u32> {
        let id = id.to_string();
        self.within(WHAT, self.osds().delete_policy(&id)).await
    }
}
