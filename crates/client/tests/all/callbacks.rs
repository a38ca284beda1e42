//! Calls to the callback service, as a file server makes them.

use std::net::SocketAddr;
use std::sync::Arc;

use cellar_client::{BreakHandled, CallbackService, Promises};
use cellar_rpc::{CallError, Connection, PortConfig, Runtime, Security};
use cellar_wire::abort::AbortCode;
use cellar_wire::ids::{AfsUuid, Fid};
use cellar_wire::rxafs::{Callbacks, Fids};
use cellar_wire::rxafscb::{self, *};
use parking_lot::Mutex;

#[derive(Default)]
struct RecordedBreaks {
    broken: Mutex<Vec<Fid>>,
    all: Mutex<usize>,
}

impl Promises for RecordedBreaks {
    fn broken(&self, fids: &[Fid]) -> BreakHandled<'_> {
        self.broken.lock().extend_from_slice(fids);
        Box::pin(std::future::ready(()))
    }

    fn all_broken(&self, _server: SocketAddr) -> BreakHandled<'_> {
        *self.all.lock() += 1;
        Box::pin(std::future::ready(()))
    }
}

const UUID: AfsUuid = AfsUuid(*b"a client's uuid.");

fn service() -> (Runtime, Connection, Arc<RecordedBreaks>) {
    let breaks = Arc::new(RecordedBreaks::default());
    let addresses = vec!["192.0.2.7".parse().expect("address")];
    let service = Arc::new(CallbackService::new(UUID, addresses, breaks.clone()));
    let runtime = Runtime::client_only().expect("runtime");
    let any = "127.0.0.1:0".parse().expect("address");
    let port = runtime
        .open(PortConfig::new(any).service(service))
        .expect("port");
    let connection = runtime
        .connect(
            port.local_address(),
            rxafscb::PACKAGE.service_id,
            Security::null(),
        )
        .expect("connection");
    (runtime, connection, breaks)
}

#[tokio::test]
async fn says_who_it_is() {
    let (runtime, server, _) = service();
    let about = server.call(&TellMeAboutYourself {}).await.expect("about");
    assert_eq!(about.address.uuid, UUID);
    assert_eq!(about.address.interfaces[0].address, 0xc000_0207);
    assert_eq!(about.capabilities[..], [1]);
    assert_eq!(
        server.call(&WhoAreYou {}).await.expect("who").address.uuid,
        UUID
    );
    server.call(&Probe {}).await.expect("probe");
    server
        .call(&ProbeUuid { client_uuid: UUID })
        .await
        .expect("its own uuid");
    let other = server
        .call(&ProbeUuid {
            client_uuid: AfsUuid::NIL,
        })
        .await;
    assert!(
        matches!(other, Err(CallError::Aborted(AbortCode(1)))),
        "{other:?}"
    );
    let old = server.call(&InitCallBackState2 {}).await;
    assert!(
        matches!(old, Err(CallError::Aborted(AbortCode::RXGEN_OPCODE))),
        "{old:?}"
    );
    runtime.shutdown();
}

#[tokio::test]
async fn broken_promises_are_known_before_the_answer() {
    let (runtime, server, breaks) = service();
    let fids = [
        Fid::new(1, 2, 3),
        Fid::whole_volume(cellar_wire::VolumeId(9)),
    ];
    // File servers send no callbacks with the fids.
    let arguments = CallBack {
        fids: Fids::from_iter_cut(fids),
        callbacks: Callbacks::new(),
    };
    server.call(&arguments).await.expect("break");
    assert_eq!(*breaks.broken.lock(), fids);
    server.call(&InitCallBackState {}).await.expect("all");
    server
        .call(&InitCallBackState3 { server_uuid: UUID })
        .await
        .expect("all");
    assert_eq!(*breaks.all.lock(), 2);
    runtime.shutdown();
}
