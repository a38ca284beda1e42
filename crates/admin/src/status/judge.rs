//! The findings of a status: which facts need attention.

use super::{CellStatus, Counted, Finding, FindingKind, Verdict, VolumeProblem};
use crate::osd::State;
use crate::table::short_size;

/// The used share of a partition or device, in percent, from which it counts as full. The alert
/// rules of monitoring/alerts.yml use the same share.
const FULL_PERCENT: u128 = 90;

/// The largest difference of clocks, in seconds, that needs no attention. Kerberos refuses tickets
/// from 300 s on.
pub const CLOCK_SECONDS_MAX: u64 = 10;

impl CellStatus {
    /// Fills the findings, the unknown facts and the verdict.
    pub(super) fn judge(&mut self) {
        let mut findings = Vec::new();
        self.judge_servers(&mut findings);
        self.judge_devices(&mut findings);
        self.judge_volumes(&mut findings);
        self.not_known.append(&mut self.volumes.not_known);
        let is_known = self.database_servers.iter().any(|server| server.location);
        self.verdict = match (is_known, findings.is_empty()) {
            (false, _) => Verdict::Unknown,
            (true, false) => Verdict::Attention,
            (true, true) => Verdict::Well,
        };
        self.findings = findings;
    }

    fn judge_servers(&self, findings: &mut Vec<Finding>) {
        let mut add = |kind, subject: String, text: String| {
            findings.push(Finding {
                kind,
                subject,
                text,
            });
        };
        for server in &self.database_servers {
            let what = match (server.location, server.protection) {
                (true, true) => continue,
                (true, false) => "the protection server",
                (false, true) => "the volume location server",
                (false, false) => "the database server",
            };
            let text = format!("{what} {} does not answer", server.address);
            add(
                FindingKind::DatabaseServerDown,
                server.address.to_string(),
                text,
            );
        }
        for server in &self.file_servers {
            let first = server.answered.or(server.addresses.first().copied());
            let name = first.map_or_else(String::new, |address| address.to_string());
            if !server.reachable {
                let text = format!("the file server {name} does not answer");
                add(FindingKind::FileServerDown, name, text);
                continue;
            }
            if !server.volume_server {
                let text = format!("the volume server {name} does not answer");
                add(FindingKind::VolumeServerDown, name.clone(), text);
            }
            if let Some(offset) = server.clock_offset_seconds
                && offset.unsigned_abs() > CLOCK_SECONDS_MAX
            {
                let text = format!("the clock of {name} differs from this machine's by {offset} s");
                add(FindingKind::Clock, name.clone(), text);
            }
            for space in server.partitions.iter().flatten() {
                let (total, free) = (space.total_kib.max(0), space.free_kib.max(0));
                let (total, free) = (total.unsigned_abs(), free.unsigned_abs());
                if is_full(total, free) {
                    add(
                        FindingKind::PartitionFull,
                        format!("{name} {}", space.partition),
                        format!(
                            "{} of {name} has {} free of {}",
                            space.partition,
                            short_size(free << 10),
                            short_size(total << 10)
                        ),
                    );
                }
            }
            for scrub in &server.scrubs {
                if let Some(last) = &scrub.last
                    && last.damaged > 0
                {
                    let text = format!(
                        "the last scrub of {} of {name} found {} damaged files; 'cellar vos scrub {name} {0} -refill' \
                         names and restores them",
                        scrub.partition, last.damaged
                    );
                    let subject = format!("{name} {}", scrub.partition);
                    add(FindingKind::ScrubDamage, subject, text);
                }
            }
            if let Some(repairs) = server.repairs
                && repairs.waiting + repairs.running > 0
            {
                let text = format!(
                    "{} objects of files of {name} wait for their repair; the repair of {} failed",
                    repairs.waiting + repairs.running,
                    repairs.failed
                );
                add(FindingKind::Degraded, name, text);
            }
        }
    }

    fn judge_devices(&self, findings: &mut Vec<Finding>) {
        for device in self.devices.iter().flatten() {
            let name = format!("device {} ({})", device.id, device.name);
            let finding = match device.state {
                State::Down => Some((
                    FindingKind::DeviceDown,
                    match device.silent_seconds {
                        Some(seconds) => format!("{name} is silent for {seconds} s"),
                        None => format!("{name} has never reported"),
                    },
                )),
                State::Readonly => Some((
                    FindingKind::DeviceReadonly,
                    format!("{name} accepts no changes"),
                )),
                _ if is_full(device.total, device.free) => Some((
                    FindingKind::DeviceFull,
                    format!(
                        "{name} has {} free of {}",
                        short_size(device.free),
                        short_size(device.total)
                    ),
                )),
                _ => None,
            };
            findings.extend(finding.map(|(kind, text)| Finding {
                kind,
                subject: device.name.clone(),
                text,
            }));
        }
    }

    fn judge_volumes(&self, findings: &mut Vec<Finding>) {
        let mut add =
            |kind, problems: &Counted<VolumeProblem>, text: &dyn Fn(&VolumeProblem) -> String| {
                findings.extend(problems.listed.iter().map(|problem| Finding {
                    kind,
                    subject: problem.name.clone(),
                    text: format!("volume {} {}", problem.named(), text(problem)),
                }));
            };
        let place = |problem: &VolumeProblem| format!("{} {}", problem.server, problem.partition);
        let volumes = &self.volumes;
        add(FindingKind::VolumeDamaged, &volumes.damaged, &|problem| {
            format!("on {} cannot be attached", place(problem))
        });
        add(FindingKind::VolumeOffLine, &volumes.off_line, &|problem| {
            format!("on {} is off line", place(problem))
        });
        add(FindingKind::QuotaFull, &volumes.quota_full, &|problem| {
            let size = |kib: u32| short_size(u64::from(kib) << 10);
            format!(
                "uses {} of its quota of {}",
                size(problem.size_kib),
                size(problem.quota_kib)
            )
        });
        add(
            FindingKind::SiteOutdated,
            &volumes.outdated_sites,
            &|problem| format!("on {} is out of date", place(problem)),
        );
        add(FindingKind::VolumeMissing, &volumes.missing, &|problem| {
            format!(
                "is not on {}, where the VLDB names it; restore it, or correct the VLDB: 'cellar vos syncserv {} \
                 -dryrun'",
                place(problem),
                problem.server
            )
        });
        add(FindingKind::VolumeUnlisted, &volumes.unlisted, &|problem| {
            format!(
                "on {} is not in the VLDB; 'cellar vos syncvldb {}' enters it, 'cellar vos zap' removes it",
                place(problem),
                problem.server
            )
        });
    }
}

impl VolumeProblem {
    /// The name with the number, or the number alone.
    pub fn named(&self) -> String {
        match self.name.as_str() {
            "" => self.id.to_string(),
            name => format!("{name} ({})", self.id),
        }
    }
}

fn is_full(total: u64, free: u64) -> bool {
    let used = u128::from(total.saturating_sub(free));
    total > 0 && used * 100 >= u128::from(total) * FULL_PERCENT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenth_of_room_is_not_full() {
        assert!(!is_full(0, 0));
        assert!(!is_full(100, 11));
        assert!(is_full(100, 10));
        assert!(is_full(u64::MAX, 0));
        assert!(!is_full(10, 20));
    }
}
