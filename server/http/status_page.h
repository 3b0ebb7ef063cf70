// The files of the status page, in the binary: server/http/page, embedded at build.
#ifndef TCGEMM_SERVER_HTTP_STATUS_PAGE_H_
#define TCGEMM_SERVER_HTTP_STATUS_PAGE_H_

#include <string_view>

namespace tcgemm {

std::string_view StatusHtml();
std::string_view StatusCss();
std::string_view StatusJs();

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_HTTP_STATUS_PAGE_H_
