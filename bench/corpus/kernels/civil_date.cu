// Year, month and day of the Gregorian calendar for numbers of days since 1970-01-01.
__global__ void civil_date(const int* days, int* date, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const int z = days[i] + 719468;
  const int era = (z >= 0 ? z : z - 146096) / 146097;
  const int doe = z - era * 146097;
  const int yoe = (doe - doe / 1460 + doe / 36524 - doe / 146096) / 365;
  const int doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
  const int mp = (5 * doy + 2) / 153;
  const int day = doy - (153 * mp + 2) / 5 + 1, month = mp < 10 ? mp + 3 : mp - 9;
  date[3 * i] = yoe + era * 400 + (month <= 2);
  date[3 * i + 1] = month;
  date[3 * i + 2] = day;
}
