// SPDX-License-Identifier: Apache-2.0

//! Names in the DNS: peers of rules about IP, and what rules about DNS allow.

use crate::object::object;
use crate::patterns;

object! {
    /// Names in the DNS.
    #[derive(Eq)]
    #[schemars(extend("oneOf" = [{ "required": ["matchName"] }, { "required": ["matchPattern"] }]))]
    pub struct FqdnSelector {
        /// One name.
        #[schemars(extend("maxLength" = 255, "pattern" = patterns::FQDN))]
        pub match_name: Option<String>,
        /// Names by a pattern: `*` stands for characters of one label, a leading `**.` for whole labels, `*` alone for all.
        #[schemars(extend("maxLength" = 255, "pattern" = patterns::FQDN_PATTERN))]
        pub match_pattern: Option<String>,
    }
}
