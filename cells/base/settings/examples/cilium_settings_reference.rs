// SPDX-License-Identifier: Apache-2.0

//! Prints the list of Cilium's settings: `tests/hack/generate.sh` writes it to `docs/reference/cilium-settings.md`.

fn main() {
    print!("{}", skep_base_settings::cilium::reference());
}
