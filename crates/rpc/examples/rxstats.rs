//! Prints the RPC statistics of any Rx server, Cellar's or OpenAFS's: `rxstats ADDRESS:PORT`.

use std::error::Error;

use cellar_rpc::{Runtime, Security};
use cellar_wire::rxstats::{PACKAGE, QueryProcessRPCStats, RetrieveProcessRPCStats, VERSION};

fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args()
        .nth(1)
        .ok_or("rxstats ADDRESS:PORT")?
        .parse()?;
    let runtime = Runtime::client_only()?;
    let connection = runtime.connect(address, PACKAGE.service_id, Security::null())?;
    let waiting = tokio::runtime::Builder::new_current_thread().build()?;
    waiting.block_on(async {
        let on = connection.call(&QueryProcessRPCStats {}).await?.on;
        let arguments = RetrieveProcessRPCStats {
            client_version: VERSION,
        };
        let reply = connection.call(&arguments).await?;
        println!("statistics are {}", if on == 0 { "off" } else { "on" });
        for record in reply
            .stats
            .records()
            .iter()
            .filter(|record| record.invocations > 0)
        {
            let times = record.execution;
            println!(
                "interface {:2} function {:3} of {:3}: {:8} calls, {:10} bytes in, {:10} out, \
                 {}.{:06} s in all, at most {}.{:06}",
                record.interface,
                record.function,
                record.function_count,
                record.invocations,
                record.bytes_received,
                record.bytes_sent,
                times.sum.seconds,
                times.sum.microseconds,
                times.max.seconds,
                times.max.microseconds,
            );
        }
        Ok(())
    })
}
