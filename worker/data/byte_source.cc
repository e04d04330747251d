#include "worker/data/byte_source.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <array>
#include <cerrno>
#include <cstring>

namespace leeway::worker::data {

namespace {

// Deflate never does better than 1032 : 1 (zlib's "Technical Details").
constexpr std::uint64_t kBestDeflateRatio = 1032;
constexpr int kGzipWindowBits = 15 + 16;

}  // namespace

struct ByteSource::State {
  std::string name;
  int file = -1;
  std::uint64_t file_bytes = 0;
  bool gzipped = false;
  bool inside_member = false;  // gzipped: a member has begun and not ended
  bool ended = false;          // the file's own bytes are all in `input`
  z_stream inflater{};         // next_in, avail_in: what of `input` is not used yet
  std::array<std::uint8_t, std::size_t{64} << 10> input;

  ~State() {
    if (gzipped) inflateEnd(&inflater);
    if (file >= 0) ::close(file);
  }

  tl::unexpected<Error> error(std::string_view what) const {
    return fail(Code::kDataLoss, fmt::format("{}: {}", name, what));
  }

  Status fill_input() {
    while (inflater.avail_in == 0 && !ended) {
      const ssize_t got = ::read(file, input.data(), input.size());
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return error(fmt::format("cannot read: {}", std::strerror(errno)));
      ended = got == 0;
      inflater.next_in = input.data();
      inflater.avail_in = static_cast<uInt>(got);
    }
    return {};
  }

  Result<std::size_t> read_plain(std::span<std::uint8_t> out) {
    std::size_t done = 0;
    while (done < out.size()) {
      if (auto status = fill_input(); !status) return tl::unexpected(status.error());
      if (inflater.avail_in == 0) break;
      const std::size_t piece = std::min<std::size_t>(inflater.avail_in, out.size() - done);
      std::memcpy(out.data() + done, inflater.next_in, piece);
      inflater.next_in += piece;
      inflater.avail_in -= static_cast<uInt>(piece);
      done += piece;
    }
    return done;
  }

  Result<std::size_t> read_gzipped(std::span<std::uint8_t> out) {
    std::size_t done = 0;
    while (done < out.size()) {
      if (auto status = fill_input(); !status) return tl::unexpected(status.error());
      if (inflater.avail_in == 0) {
        if (inside_member) return error("cut short inside its gzip data");
        break;
      }
      if (!inside_member) {  // a gzip file is one or more members, nothing between or after them
        inflateReset(&inflater);
        inside_member = true;
      }
      const std::size_t room = std::min<std::size_t>(out.size() - done, 1u << 30);
      inflater.next_out = out.data() + done;
      inflater.avail_out = static_cast<uInt>(room);
      const int result = inflate(&inflater, Z_NO_FLUSH);
      done += room - inflater.avail_out;
      if (result == Z_STREAM_END) {
        inside_member = false;
      } else if (result != Z_OK && result != Z_BUF_ERROR) {
        return error(fmt::format("damaged gzip data ({})",
                                 inflater.msg != nullptr ? inflater.msg : zError(result)));
      }
    }
    return done;
  }
};

ByteSource::ByteSource(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}
ByteSource::ByteSource(ByteSource&&) noexcept = default;
ByteSource& ByteSource::operator=(ByteSource&&) noexcept = default;
ByteSource::~ByteSource() = default;

Result<ByteSource> ByteSource::open(const std::filesystem::path& path) {
  auto state = std::make_unique<State>();
  state->name = path.string();
  // Without O_NONBLOCK opening a pipe waits for its writer.
  state->file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (state->file < 0) {
    const Code code = errno == ENOENT || errno == ENOTDIR ? Code::kNotFound : Code::kUnsupported;
    return fail(code, fmt::format("{}: cannot open: {}", state->name, std::strerror(errno)));
  }
  struct stat info {};
  if (::fstat(state->file, &info) != 0 || !S_ISREG(info.st_mode))
    return fail(Code::kUnsupported, fmt::format("{}: not a regular file", state->name));
  state->file_bytes = static_cast<std::uint64_t>(info.st_size);

  if (auto status = state->fill_input(); !status) return tl::unexpected(status.error());
  z_stream& inflater = state->inflater;
  if (inflater.avail_in >= 2 && inflater.next_in[0] == 0x1F && inflater.next_in[1] == 0x8B) {
    if (inflateInit2(&inflater, kGzipWindowBits) != Z_OK)
      return fail(Code::kResourceExhausted, fmt::format("{}: no memory for zlib", state->name));
    state->gzipped = true;
  }
  return ByteSource(std::move(state));
}

Result<std::size_t> ByteSource::read(std::span<std::uint8_t> out) {
  return state_->gzipped ? state_->read_gzipped(out) : state_->read_plain(out);
}

std::uint64_t ByteSource::most_bytes() const noexcept {
  return state_->gzipped ? state_->file_bytes * kBestDeflateRatio : state_->file_bytes;
}

}  // namespace leeway::worker::data
