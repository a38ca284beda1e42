//! Looks at the cluster: each second whether it answers, every few seconds its members and alarms.

use std::time::Duration;

use crate::client::Client;
use crate::keys::Keys;
use crate::messages::RangeRequest;
use crate::status::{Figures, Place, Seen, alarm_name};

const PROBE_EVERY: Duration = Duration::from_secs(1);
const PROBE_PATIENCE: Duration = Duration::from_millis(1500);
/// Probes between two looks at the members.
const LOOK_EVERY: u32 = 5;
/// Entries of the log by which a member may be behind before it is reported.
const BEHIND_MAX: u64 = 5000;

/// Runs until it is dropped.
pub(crate) async fn run(client: &Client, keys: &Keys, figures: &Figures) {
    let mut round = 0_u32;
    loop {
        let request = RangeRequest {
            key: keys.last(),
            keys_only: true,
            ..RangeRequest::default()
        };
        match client.range(&request, PROBE_PATIENCE).await {
            Ok(_) => figures.answered(),
            Err(fault) => figures.silent(&fault.to_string()),
        }
        if round.is_multiple_of(LOOK_EVERY) {
            look(client, figures).await;
        }
        round = round.wrapping_add(1);
        tokio::time::sleep(PROBE_EVERY).await;
    }
}

/// Looks at members and alarms once, and logs changes.
pub(crate) async fn look(client: &Client, figures: &Figures) {
    let before = figures.seen();
    let mut seen = Seen::default();
    let mut index = 0;
    let mut indices = Vec::new();
    for (at, address) in client.urls().enumerate() {
        let mut place = Place {
            address: address.to_owned(),
            ..Place::default()
        };
        let answer = client.status(at, PROBE_PATIENCE).await;
        indices.push(answer.as_ref().map_or(0, |status| status.raft_index));
        match answer {
            Ok(status) => {
                place.version = status.version;
                place.bytes = u64::try_from(status.db_size).unwrap_or_default();
                if status.leader != 0 {
                    seen.leader = status.leader;
                }
                index = index.max(status.raft_index);
            }
            Err(fault) => place.fault = Some(fault.to_string()),
        }
        seen.places.push(place);
    }
    for (place, known) in seen.places.iter_mut().zip(indices) {
        place.behind = if place.fault.is_none() {
            index - known
        } else {
            0
        };
    }
    match client.members(PROBE_PATIENCE).await {
        Ok(list) => seen.members = list.members,
        Err(_) => seen.members.clone_from(&before.members),
    }
    match client.alarms(PROBE_PATIENCE).await {
        Ok(answer) => {
            let alarms = answer.alarms.iter();
            seen.alarms = alarms.map(|alarm| (alarm.member, alarm.alarm)).collect();
        }
        Err(_) => seen.alarms.clone_from(&before.alarms),
    }
    log_changes(&before, &seen);
    figures.see(seen);
}

fn log_changes(before: &Seen, now: &Seen) {
    for &(member, alarm) in now
        .alarms
        .iter()
        .filter(|alarm| !before.alarms.contains(alarm))
    {
        let alarm = alarm_name(alarm);
        tracing::error!(member = format!("{member:x}"), alarm, "etcd has an alarm");
    }
    for &(member, alarm) in before
        .alarms
        .iter()
        .filter(|alarm| !now.alarms.contains(alarm))
    {
        let alarm = alarm_name(alarm);
        tracing::info!(
            member = format!("{member:x}"),
            alarm,
            "etcd's alarm is over"
        );
    }
    if now.leader != before.leader && before.leader != 0 {
        tracing::info!(
            leader = format!("{:x}", now.leader),
            "etcd has another leader"
        );
    }
    for place in &now.places {
        let known = before
            .places
            .iter()
            .find(|known| known.address == place.address);
        let address = &place.address;
        let was_faulty = known.is_some_and(|known| known.fault.is_some());
        match &place.fault {
            Some(reason) if !was_faulty => {
                tracing::warn!(address, reason, "a member of etcd does not answer");
            }
            None if was_faulty => tracing::info!(address, "a member of etcd answers again"),
            _ => {}
        }
        let was_behind = known.is_some_and(|known| known.behind > BEHIND_MAX);
        if place.behind > BEHIND_MAX && !was_behind {
            tracing::warn!(address, entries = place.behind, "a member of etcd is slow");
        }
    }
}
