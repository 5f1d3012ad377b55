// SPDX-License-Identifier: Apache-2.0

//! A real etcd passes the suite that every store passes.

use skep_kvstore_etcd::testing::EtcdServer;

skep_kvstore_client::contract_tests!(EtcdServer::start);
