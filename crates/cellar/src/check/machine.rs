//! The system's limits: the sizes of UDP socket buffers.

use super::{Finding, Server};

const CHECK: &str = "buffers";

/// Checks the largest socket buffers that the system grants. A server with root's rights is not
/// bound by them.
pub(super) fn buffers(server: &Server) -> Vec<Finding> {
    let wanted = cellar_rpc::RuntimeConfig::default().socket_buffer_bytes;
    let limits = ["rmem_max", "wmem_max"];
    let small: Vec<_> = limits
        .iter()
        .filter_map(|name| {
            let text = std::fs::read_to_string(format!("/proc/sys/net/core/{name}")).ok()?;
            let granted: usize = text.trim().parse().ok()?;
            (granted < wanted).then(|| format!("net.core.{name} is {granted}"))
        })
        .collect();
    if small.is_empty() {
        let text = format!("the system grants socket buffers of {wanted} bytes");
        return vec![Finding::ok(CHECK, text)];
    }
    let small = small.join(" and ");
    let limits = limits.map(|name| format!("net.core.{name}={wanted}"));
    let remedy = ["sysctl", "-w"]
        .map(str::to_owned)
        .into_iter()
        .chain(limits);
    let owner = std::fs::metadata(server.directory.path());
    let is_root = owner.is_ok_and(|owner| std::os::unix::fs::MetadataExt::uid(&owner) == 0);
    let finding = match is_root {
        true => Finding::note(
            CHECK,
            format!("{small}; a server that runs as root still gets {wanted} bytes"),
        ),
        false => Finding::warning(
            CHECK,
            format!("{small}, below the wanted {wanted} bytes: packets are lost under load"),
        ),
    };
    vec![finding.mended_by(remedy)]
}
