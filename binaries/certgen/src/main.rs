// SPDX-License-Identifier: Apache-2.0

//! `skep-certgen`: creates the certificates that a cluster uses, once; a CronJob renews them.

use std::{error::Error, process::ExitCode, sync::Arc};

use clap::Parser;
use skep_certgen::Options;
use skep_k8s_client::{
    Client,
    remote::{RemoteClient, Settings, Target},
};

fn main() -> ExitCode {
    let options = Options::parse();
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let mut text = error.to_string();
            let mut cause = error.source();
            while let Some(next) = cause {
                text.push_str(&format!(": {next}"));
                cause = next.source();
            }
            eprintln!("skep-certgen: {text}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let target = Target::choose(options.k8s_kubeconfig_path.as_deref(), &[]);
    if target == Target::Nowhere {
        return Err("no cluster: outside of a pod, set --k8s-kubeconfig-path".into());
    }
    runtime.block_on(async {
        let client: Arc<dyn Client> = Arc::new(RemoteClient::new(target, Settings::default())?);
        for line in skep_certgen::generate(&client, options).await? {
            println!("{line}");
        }
        Ok(())
    })
}
