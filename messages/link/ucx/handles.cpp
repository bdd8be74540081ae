#include "messages/link/ucx/handles.hpp"

#include <fmt/format.h>
#include <ucs/config/global_opts.h>

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string_view>

#include "messages/link/advice.hpp"
#include "messages/link/ucx/log.hpp"
#include "messages/link/ucx/segments.hpp"

namespace troupe::messages::ucx {
namespace {

struct config_release {
  void operator()(ucp_config_t* config) const noexcept { ucp_config_release(config); }
};
using config = std::unique_ptr<ucp_config_t, config_release>;

result<config> make_config(const link_options& options) {
  ucp_config_t* raw = nullptr;
  if (const auto status = ucp_config_read(nullptr, nullptr, &raw); status != UCS_OK)
    return tl::unexpected(to_error(status, "UCX cannot read its configuration"));
  config out(raw);
  const bool shm = options.transport == link_transport::shm;
  // The environment may choose among a trusted network's fabrics; it cannot open more than that.
  std::vector<std::pair<std::string, std::string>> settings = {{"WARN_UNUSED_ENV_VARS", "n"}};
  if (shm) {
    settings.emplace_back("TLS", "posix");
  } else if (!options.beyond_loopback) {
    settings.emplace_back("TLS", "tcp");
    settings.emplace_back("NET_DEVICES", "lo");  // it opens a port on each device that it may use
    settings.emplace_back("RNDV_SCHEME", "put_zcopy");
  }
  // A user who wants UCX's warnings asks for them in the environment.
  if (std::getenv("UCX_LOG_LEVEL") == nullptr) settings.emplace_back("LOG_LEVEL", "error");
  settings.insert(settings.end(), options.settings.begin(), options.settings.end());
  for (const auto& [name, value] : settings) {
    const auto status = ucp_config_modify(out.get(), name.c_str(), value.c_str());
    if (status != UCS_OK)
      return tl::unexpected(
          to_error(status, fmt::format("UCX refuses the setting {}={}", name, value)));
  }
  return out;
}

result<void> check_transports(const std::string& description, link_transport wanted) {
  const auto has = [&description](std::string_view name) {
    return description.find(fmt::format(" {}/", name)) != std::string::npos;
  };
  if (wanted != link_transport::shm || has("posix") || has("sysv")) return {};
  return fail(errc::transport_missing,
              fmt::format("UCX has no shared-memory transport on this machine; {}", use_tcp));
}

result<context> make_context(const link_options& options, const purpose& use) {
  result<config> settings = make_config(options);
  if (!settings) return tl::unexpected(std::move(settings.error()));
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED;
  params.features = use.features;
  params.mt_workers_shared = use.in_several_threads ? 1 : 0;
  ucp_context_h raw = nullptr;
  if (const auto status = ucp_init(&params, settings->get(), &raw); status != UCS_OK)
    return tl::unexpected(to_error(status, "UCX cannot start"));
  context out(raw);
  const auto transports = printed([raw](std::FILE* to) { ucp_context_print_info(raw, to); });
  if (auto checked = check_transports(transports, options.transport); !checked)
    return tl::unexpected(std::move(checked.error()));
  return out;
}

}  // namespace

error to_error(ucs_status_t status, const std::string& what, std::optional<errc> as) {
  const auto code = [&] {
    switch (status) {
      case UCS_ERR_NO_DEVICE:
      case UCS_ERR_UNSUPPORTED:
        return errc::transport_missing;
      case UCS_ERR_INVALID_ADDR:
      case UCS_ERR_BUSY:
        return errc::address_unavailable;
      case UCS_ERR_TIMED_OUT:
        return errc::timed_out;
      case UCS_ERR_CANCELED:
        return errc::cancelled;
      case UCS_ERR_CONNECTION_RESET:
      case UCS_ERR_ENDPOINT_TIMEOUT:
        return errc::peer_lost;
      default:
        return errc::io_failed;
    }
  };
  return {as ? *as : code(), fmt::format("{}: {}", what, ucs_status_string(status))};
}

result<worker> make_worker(ucp_context_h parent) {
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE | UCP_WORKER_PARAM_FIELD_FLAGS;
  params.thread_mode = UCS_THREAD_MODE_SINGLE;
  // Endpoints of dead peers are abandoned with their requests.
  params.flags = UCP_WORKER_FLAG_IGNORE_REQUEST_LEAK;
  ucp_worker_h raw = nullptr;
  if (const auto status = ucp_worker_create(parent, &params, &raw); status != UCS_OK)
    return tl::unexpected(to_error(status, "UCX cannot create a worker"));
  return worker(raw);
}

result<void> set_handler(ucp_worker_h of, unsigned id, ucp_am_recv_callback_t take, void* arg) {
  ucp_am_handler_param_t params{};
  params.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                      UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  params.id = id;
  params.flags = UCP_AM_FLAG_WHOLE_MSG;
  params.cb = take;
  params.arg = arg;
  const auto status = ucp_worker_set_am_recv_handler(of, &params);
  if (status == UCS_OK) return {};
  return tl::unexpected(to_error(status, "UCX takes no handler"));
}

result<std::vector<std::byte>> address_of(ucp_worker_h of) {
  ucp_address_t* address = nullptr;
  std::size_t length = 0;
  const auto status = ucp_worker_get_address(of, &address, &length);
  if (status != UCS_OK)
    return tl::unexpected(
        to_error(status, "UCX does not say where it is reached", errc::io_failed));
  const auto* const bytes = reinterpret_cast<const std::byte*>(address);
  std::vector<std::byte> copy(bytes, bytes + length);
  ucp_worker_release_address(of, address);
  return copy;
}

/// A forced close gives no request to wait for (up to UCX 1.22 at least), but what it cancels ends,
/// and its lanes go, in later turns of the worker: UCX asks for those before the worker is
/// destroyed.
void close_endpoint(ucp_worker_h of, ucp_ep_h endpoint, const std::function<bool()>& is_over) {
  constexpr unsigned most_turns = 10'000;
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  params.flags = UCP_EP_CLOSE_FLAG_FORCE;
  const ucs_status_ptr_t closing = ucp_ep_close_nbx(endpoint, &params);
  const auto is_closed = [closing] {
    return !UCS_PTR_IS_PTR(closing) || ucp_request_check_status(closing) != UCS_INPROGRESS;
  };
  for (unsigned turn = 0; turn < most_turns; ++turn)
    if (ucp_worker_progress(of) == 0 && is_closed() && is_over()) break;
  if (UCS_PTR_IS_PTR(closing)) ucp_request_free(closing);
}

result<std::unique_ptr<library>> library::open(const link_options& options, const purpose& use) {
  take_log();
  if (options.transport == link_transport::shm) {
    static std::once_flag once;
    std::call_once(once, &prepare_segments);
    sweep_segments();
  }
  auto made = make_context(options, use);
  if (!made) return tl::unexpected(std::move(made.error()));
  if (options.transport == link_transport::shm) {
    // Better now than when the first peer has come.
    if (const auto tried = make_worker(made->get()); !tried)
      return fail(errc::transport_missing,
                  fmt::format("{}, for want of shared memory: look at ulimit -f and the room in "
                              "/dev/shm, or {}",
                              tried.error().text, use_tcp));
  }
  return std::unique_ptr<library>(new library(std::move(*made)));
}

library::~library() {
  sweep_segments();  // of peers that were killed
}

}  // namespace troupe::messages::ucx
